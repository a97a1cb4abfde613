//! Asks the server about itself: its models, its version, its metrics.

use serde::Deserialize;

use crate::bundle::{Answer, Model};
use crate::client::{Client, ClientError, refusal_text};

/// GETs a path; what goes wrong is part of the answer.
pub async fn ask(client: &Client, path: &str) -> Answer {
    match client.get(path).await {
        Ok((status, text)) => Answer {
            status: Some(status),
            text: Some(text),
            error: None,
        },
        Err(e) => Answer {
            status: None,
            text: None,
            error: Some(e.to_string()),
        },
    }
}

/// The models that `GET /v1/models` lists, and the answer itself.
pub async fn models(client: &Client) -> Result<(Vec<Model>, Answer), ClientError> {
    const PATH: &str = "/v1/models";
    let (status, text) = client.get(PATH).await?;
    let refused = |what: String| ClientError::Status {
        url: format!("{}{PATH}", client.url()),
        status,
        what,
    };
    if status != 200 {
        return Err(refused(refusal_text(&text)));
    }
    let models = parse(&text).map_err(|e| refused(format!("no list of models: {e}")))?;
    Ok((
        models,
        Answer {
            status: Some(status),
            text: Some(text),
            error: None,
        },
    ))
}

fn parse(text: &str) -> Result<Vec<Model>, serde_json::Error> {
    #[derive(Deserialize)]
    struct List {
        data: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        id: String,
        parent: Option<String>,
        digest: Option<String>,
        generation: Option<String>,
        bytes: Option<u64>,
    }
    let list: List = serde_json::from_str(text)?;
    let stated = |text: Option<String>| text.filter(|t| !t.is_empty());
    Ok(list
        .data
        .into_iter()
        .map(|entry| Model {
            name: entry.id,
            parent: stated(entry.parent),
            digest: stated(entry.digest).or(stated(entry.generation)),
            weight: None,
            // A server that has not loaded it may not know.
            bytes: entry.bytes.filter(|n| *n > 0),
        })
        .collect())
}

/// The version in the answer to `GET /version`.
pub fn version(answer: &Answer) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(answer.ok()?).ok()?;
    Some(value.get("version")?.as_str()?.to_owned())
}

/// Who serves, by the answer to `GET /v1/models`: `deltamux`, `vllm`, `llamacpp`, ….
pub fn owner(answer: &Answer) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(answer.ok()?).ok()?;
    Some(value.get("data")?.get(0)?.get("owned_by")?.as_str()?.to_owned()).filter(|owner| !owner.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_known_by_their_parent() {
        let models = parse(
            r#"{"object":"list","data":[{"id":"base","object":"model","parent":null},
                {"id":"sql","parent":"base","generation":"ab12"}]}"#,
        )
        .unwrap();
        assert_eq!(
            (models[0].parent.as_deref(), models[1].parent.as_deref()),
            (None, Some("base"))
        );
        assert_eq!(models[1].digest.as_deref(), Some("ab12"));
        assert!(parse("[]").is_err());
    }

    #[test]
    fn the_engine_is_known_by_what_it_says() {
        let answer = |text: &str| Answer {
            status: Some(200),
            text: Some(text.into()),
            error: None,
        };
        assert_eq!(
            owner(&answer(r#"{"data":[{"id":"m","owned_by":"vllm"}]}"#)).as_deref(),
            Some("vllm")
        );
        assert_eq!(version(&answer(r#"{"version":"0.9.1"}"#)).as_deref(), Some("0.9.1"));
        assert_eq!((owner(&answer("{}")), version(&answer("no json"))), (None, None));
    }
}
