//! Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use deltamux_engine::SubmitError;
use serde_json::{Value, json};

/// The stable values of `error.code`.
pub mod codes {
    /// 400: the body is not JSON.
    pub const INVALID_JSON: &str = "invalid_json";
    /// 400: a field has the wrong type; `param` names it.
    pub const INVALID_TYPE: &str = "invalid_type";
    /// 400: a field's value is not allowed; `param` names it.
    pub const INVALID_VALUE: &str = "invalid_value";
    /// 400: a field that must be there is not.
    pub const MISSING_PARAMETER: &str = "missing_required_parameter";
    /// 400: a field of OpenAI's API that this server does not implement and whose absence would change the answer.
    pub const UNSUPPORTED_PARAMETER: &str = "unsupported_parameter";
    /// 400: the prompt leaves no room in the context; the message has both numbers.
    pub const CONTEXT_LENGTH_EXCEEDED: &str = "context_length_exceeded";
    /// 400: the model has no chat template.
    pub const NO_CHAT_TEMPLATE: &str = "no_chat_template";
    /// 401: no key, or one that is not in the key file.
    pub const INVALID_API_KEY: &str = "invalid_api_key";
    /// 404: no such model.
    pub const MODEL_NOT_FOUND: &str = "model_not_found";
    /// 404: no such path.
    pub const NOT_FOUND: &str = "not_found";
    /// 405: the path does not have this method.
    pub const METHOD_NOT_ALLOWED: &str = "method_not_allowed";
    /// 408: the body did not arrive in time.
    pub const REQUEST_TIMEOUT: &str = "request_timeout";
    /// 413: the body is larger than the limit.
    pub const REQUEST_TOO_LARGE: &str = "request_too_large";
    /// 422: the variant exists, but its artifact was refused when it was loaded.
    pub const VARIANT_REFUSED: &str = "variant_refused";
    /// 429: the queue holds no more requests; `Retry-After` is set.
    pub const QUEUE_FULL: &str = "queue_full";
    /// 500: a fault of the server.
    pub const INTERNAL_ERROR: &str = "internal_error";
    /// 503: the model is still being loaded.
    pub const NOT_READY: &str = "not_ready";
    /// 503: the server is stopping.
    pub const SHUTTING_DOWN: &str = "shutting_down";
}

/// An error as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// One of [`codes`].
    pub code: &'static str,
    /// What was found, what is expected, what to do.
    pub message: String,
    /// The field that is wrong, as a path such as `messages[0].content`.
    pub param: Option<String>,
    /// Seconds after which to try again.
    pub retry_after: Option<u32>,
}

impl ApiError {
    /// An error without a field.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            param: None,
            retry_after: None,
        }
    }

    /// A field of the wrong type.
    pub fn invalid_type(param: &str, expected: &str, found: &str) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            codes::INVALID_TYPE,
            format!("`{param}`: expected {expected}, found {found}"),
        )
        .with_param(param)
    }

    /// A field whose value is not allowed.
    pub fn invalid_value(param: &str, what: impl std::fmt::Display) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            codes::INVALID_VALUE,
            format!("`{param}`: {what}"),
        )
        .with_param(param)
    }

    /// A field that must be there.
    pub fn missing(param: &str) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            codes::MISSING_PARAMETER,
            format!("the field `{param}` is required"),
        )
        .with_param(param)
    }

    /// A field whose meaning is not implemented: ignoring it would give a wrong answer.
    pub fn unsupported(param: &str, what: impl std::fmt::Display) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            codes::UNSUPPORTED_PARAMETER,
            format!("`{param}`: {what}"),
        )
        .with_param(param)
    }

    /// No such model.
    pub fn model_not_found(model: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            codes::MODEL_NOT_FOUND,
            format!("the model `{model}` does not exist; GET /v1/models lists those that do"),
        )
        .with_param("model")
    }

    /// A fault of the server. `what` reaches the log; the client learns no more than that it was not its fault.
    pub fn internal(what: impl std::fmt::Display) -> Self {
        tracing::error!("{what}");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            codes::INTERNAL_ERROR,
            "the server failed to answer; its log has the reason",
        )
    }

    /// The server is stopping.
    pub fn shutting_down() -> Self {
        Self {
            retry_after: Some(5),
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                codes::SHUTTING_DOWN,
                "the server is shutting down",
            )
        }
    }

    /// Names the field.
    #[must_use]
    pub fn with_param(mut self, param: &str) -> Self {
        self.param = Some(param.to_owned());
        self
    }

    /// What the engine refused. `prompt_field` is the field that the prompt came from.
    pub fn from_submit(error: SubmitError, prompt_field: &str) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::UnknownModel(name) => Self::model_not_found(&name),
            SubmitError::VariantRefused { .. } => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, codes::VARIANT_REFUSED, message).with_param("model")
            }
            SubmitError::PromptTooLong { .. } => Self::new(
                StatusCode::BAD_REQUEST,
                codes::CONTEXT_LENGTH_EXCEEDED,
                format!("{message}; shorten it"),
            )
            .with_param(prompt_field),
            SubmitError::Invalid { field, what } => {
                let field = if field == "prompt" { prompt_field } else { field };
                Self::invalid_value(field, what)
            }
            SubmitError::QueueFull { .. } => Self {
                retry_after: Some(1),
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, codes::QUEUE_FULL, message)
            },
            SubmitError::ShuttingDown => Self::shutting_down(),
            SubmitError::Internal(what) => Self::internal(what),
        }
    }

    /// OpenAI's name for the class of error.
    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The JSON form, in a response's body or in a stream.
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_that_is_too_long_is_refused_with_both_numbers_and_the_field() {
        let error = ApiError::from_submit(
            SubmitError::PromptTooLong {
                tokens: 5000,
                limit: 2048,
            },
            "messages",
        );
        assert_eq!(error.status, StatusCode::BAD_REQUEST);
        assert_eq!(error.code, codes::CONTEXT_LENGTH_EXCEEDED);
        assert_eq!(error.param.as_deref(), Some("messages"));
        assert!(
            error.message.contains("5000") && error.message.contains("2048"),
            "{error}"
        );
    }

    #[test]
    fn the_body_has_the_four_members_of_openais_form() {
        let body = ApiError::new(StatusCode::TOO_MANY_REQUESTS, codes::QUEUE_FULL, "full").body();
        assert_eq!(
            body,
            json!({"error": {"message": "full", "type": "rate_limit_error", "param": null, "code": "queue_full"}})
        );
    }
}
