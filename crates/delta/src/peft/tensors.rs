//! The tensors of an adapter: which tensor of the base each belongs to, and whether it fits.
//!
//! Names are the base's behind `base_model.model.`, with `lora_A` and `lora_B` (linears) or `lora_embedding_A` and
//! `lora_embedding_B` in place of `weight`. Whole tensors keep the base's name; `modules_to_save`, an adapter's name and
//! `base_layer` may stand in it.

use std::collections::BTreeMap;

use deltamux_model::{DType, LinearId, ModelConfig, TensorView, WeightsFile, layout};

use super::config::{AdapterConfig, DORA};
use super::difference::{Difference, transposed};
use super::{Adapter, PeftError, Replacement};

/// What a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A of a linear or head, `[rank, inputs]`.
    A,
    /// B of a linear or head, `[outputs, rank]`.
    B,
    /// A of an embedding, `[rank, vocabulary]`.
    EmbeddingA,
    /// B of an embedding, `[hidden, rank]`.
    EmbeddingB,
    /// A whole tensor.
    Whole,
}

/// Both matrices of a module, once they were found.
#[derive(Default)]
struct Pair<'a> {
    a: Option<(&'a str, TensorView<'a>)>,
    b: Option<(&'a str, TensorView<'a>)>,
    embedding: bool,
}

pub(super) fn read(file: &WeightsFile, config: &AdapterConfig, base: &ModelConfig) -> Result<Adapter, PeftError> {
    let invalid = |what: String| PeftError::invalid(file.path(), what);
    let shapes: BTreeMap<String, Vec<usize>> = base.tensors().into_iter().collect();
    let mut adapter = Adapter {
        base: config.base.clone(),
        ..Adapter::default()
    };
    let mut pairs: BTreeMap<String, Pair<'_>> = BTreeMap::new();
    let mut tied_head: Option<(&String, TensorView<'_>)> = None;
    for (stored_name, stored) in file.tensors() {
        let (name, role) = target(stored_name).map_err(invalid)?;
        let dtype = DType::from_name(&stored.dtype).ok_or_else(|| {
            invalid(format!(
                "`{stored_name}` has type {}, expected BF16, F16 or F32",
                stored.dtype
            ))
        })?;
        let view = TensorView {
            dtype,
            shape: &stored.shape,
            bytes: file.bytes(stored),
        };
        if let Some((index, value)) = view.first_non_finite() {
            return Err(invalid(format!(
                "`{stored_name}`: element {index} is {value}, expected finite weights"
            )));
        }
        if role == Role::Whole && name == layout::HEAD && base.tie_word_embeddings {
            tied_head = Some((stored_name, view));
            continue;
        }
        if !shapes.contains_key(&name) {
            return Err(invalid(unknown(stored_name, &name, base)));
        }
        if role == Role::Whole {
            let values = whole(stored_name, &name, view, &shapes[&name]).map_err(invalid)?;
            if adapter.replaced.insert(name.clone(), values).is_some() {
                return Err(invalid(format!(
                    "holds `{name}` under two names, one of them `{stored_name}`"
                )));
            }
            continue;
        }
        let pair = pairs.entry(name.clone()).or_default();
        pair.embedding |= matches!(role, Role::EmbeddingA | Role::EmbeddingB);
        let place = match role {
            Role::A | Role::EmbeddingA => &mut pair.a,
            _ => &mut pair.b,
        };
        if let Some((other, _)) = place.replace((stored_name, view)) {
            return Err(invalid(format!(
                "`{other}` and `{stored_name}` are the same matrix of `{name}`"
            )));
        }
    }
    // PEFT saves the head of a tied model, too, when its vocabulary was resized: it must be the embedding.
    if let Some((stored_name, head)) = tied_head {
        let embedding = adapter.replaced.get(layout::EMBEDDING);
        if embedding.is_none_or(|e| e.shape != head.shape || e.values != head.to_f32()) {
            return Err(invalid(format!(
                "`{stored_name}` is another matrix than the embedding, but the base ties its output head to the \
                 embedding; merge the adapter into a model with tie_word_embeddings false, and untie the base as well"
            )));
        }
    }
    for (name, pair) in pairs {
        let shape = match adapter.replaced.get(&name) {
            Some(replacement) => &replacement.shape,
            None => &shapes[&name],
        };
        let difference = difference(&name, &pair, shape, config).map_err(|what| match what {
            Refused::Tensors(what) => invalid(what),
            Refused::Config(what) => PeftError::invalid(&config.path, what),
        })?;
        match (name.as_str(), LinearId::from_weight(&name)) {
            (layout::EMBEDDING, _) => adapter.embedding = Some(difference),
            (layout::HEAD, _) => adapter.head = Some(difference),
            (_, Some(id)) => {
                adapter.linears.insert(id, difference);
            }
            _ => {
                return Err(invalid(format!(
                    "`{name}` of the base is a vector: LoRA has matrices for it"
                )));
            }
        }
    }
    Ok(adapter)
}

/// The base's tensor that a stored tensor belongs to, and what it is.
fn target(stored: &str) -> Result<(String, Role), String> {
    if stored.contains("lora_magnitude_vector") {
        return Err(format!("`{stored}`: {DORA}"));
    }
    let name = stored
        .strip_prefix("base_model.model.")
        .ok_or_else(|| format!("unknown tensor `{stored}`: names in an adapter begin with base_model.model"))?;
    for (part, role) in [
        (".lora_embedding_A", Role::EmbeddingA),
        (".lora_embedding_B", Role::EmbeddingB),
        (".lora_A", Role::A),
        (".lora_B", Role::B),
    ] {
        if let Some((module, end)) = name.split_once(part) {
            // The name of the adapter may be there, as in state dicts that were saved by hand.
            if ["", ".weight", ".default", ".default.weight"].contains(&end) {
                return Ok((format!("{module}.weight"), role));
            }
            return Err(format!(
                "unknown tensor `{stored}`: of {} only the matrix is read",
                part.trim_start_matches('.')
            ));
        }
    }
    let name = name
        .replace(".modules_to_save.default.", ".")
        .replace(".modules_to_save.", ".")
        .replace(".base_layer.", ".");
    Ok((name, Role::Whole))
}

fn unknown(stored: &str, name: &str, base: &ModelConfig) -> String {
    let layers = base.num_layers;
    format!(
        "unknown tensor `{stored}`: the base, of {layers} layers, has no `{name}`; give the --base that the adapter was \
         trained on"
    )
}

/// Rows of an embedding or head may differ from the base's: tokens were added.
fn may_grow(name: &str) -> bool {
    matches!(name, layout::EMBEDDING | layout::HEAD)
}

fn whole(stored: &str, name: &str, view: TensorView<'_>, shape: &[usize]) -> Result<Replacement, String> {
    let fits = view.shape == shape
        || (may_grow(name) && view.shape.len() == 2 && view.shape[1] == shape[1] && view.shape[0] > 0);
    if !fits {
        return Err(format!(
            "`{stored}` has shape {:?}, but `{name}` of the base has {shape:?}",
            view.shape
        ));
    }
    Ok(Replacement {
        shape: view.shape.to_vec(),
        values: view.to_f32(),
    })
}

enum Refused {
    Tensors(String),
    Config(String),
}

/// Checks the two matrices against each other, the configuration and the base's `shape`.
fn difference(name: &str, pair: &Pair<'_>, shape: &[usize], config: &AdapterConfig) -> Result<Difference, Refused> {
    let refuse = |what: String| Err(Refused::Tensors(what));
    let module = name.strip_suffix(".weight").unwrap_or(name);
    let ((a_name, a), (b_name, b)) = match (pair.a, pair.b) {
        (Some(a), Some(b)) => (a, b),
        (Some((found, _)), None) => {
            return refuse(format!(
                "`{found}` is there, but B of `{module}` is missing; save the adapter again"
            ));
        }
        (None, Some((found, _))) => {
            return refuse(format!(
                "`{found}` is there, but A of `{module}` is missing; save the adapter again"
            ));
        }
        (None, None) => return refuse(format!("`{module}` has neither A nor B")),
    };
    if pair.embedding != (name == layout::EMBEDDING) || (pair.embedding && a_name.contains(".lora_A")) {
        return refuse(format!(
            "`{a_name}` and `{b_name}` do not belong to the kind of module that `{module}` is"
        ));
    }
    let (&[rank, wide], &[tall, rank_b]) = (a.shape, b.shape) else {
        return refuse(format!(
            "`{a_name}` has shape {:?} and `{b_name}` {:?}: expected matrices",
            a.shape, b.shape
        ));
    };
    if rank != rank_b {
        return refuse(format!(
            "`{a_name}` has {rank} rows, but `{b_name}` has {rank_b} columns: both are the rank"
        ));
    }
    let &[outputs, inputs] = shape else {
        return refuse(format!("`{module}` of the base is a vector: LoRA has matrices for it"));
    };
    let found = if pair.embedding { [wide, tall] } else { [tall, wide] };
    if found != [outputs, inputs] {
        return refuse(format!(
            "`{a_name}` {:?} and `{b_name}` {:?} make a difference of shape {found:?}, but `{name}` of the base has \
             {shape:?}; it was tuned from another base",
            a.shape, b.shape
        ));
    }
    let (expected, scale) = config.of(module).map_err(Refused::Config)?;
    if rank != expected {
        return refuse(format!(
            "`{a_name}` has rank {rank}, but `r` and `rank_pattern` of the configuration say {expected}"
        ));
    }
    let (a, b) = (a.to_f32(), b.to_f32());
    let (a, b) = if pair.embedding {
        (transposed(&b, tall, rank), transposed(&a, rank, wide))
    } else {
        (a, b)
    };
    Ok(Difference {
        scale,
        rank,
        inputs,
        outputs,
        a,
        b,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_bases_behind_the_prefix() {
        let of = |name: &str| target(&format!("base_model.model.{name}"));
        let q = "model.layers.3.self_attn.q_proj";
        let found = |name: &str, role| Ok((format!("{name}.weight"), role));
        assert_eq!(of(&format!("{q}.lora_A.weight")), found(q, Role::A));
        assert_eq!(of(&format!("{q}.lora_B.default.weight")), found(q, Role::B));
        assert_eq!(
            of("model.embed_tokens.lora_embedding_A"),
            found("model.embed_tokens", Role::EmbeddingA)
        );
        assert_eq!(
            of("model.embed_tokens.lora_embedding_B.default"),
            found("model.embed_tokens", Role::EmbeddingB)
        );
        for name in [
            "lm_head.weight",
            "lm_head.modules_to_save.default.weight",
            "lm_head.modules_to_save.weight",
        ] {
            assert_eq!(of(name), found("lm_head", Role::Whole));
        }
        assert_eq!(
            of("model.embed_tokens.base_layer.weight"),
            found("model.embed_tokens", Role::Whole)
        );
        assert_eq!(of(&format!("{q}.bias")), Ok((format!("{q}.bias"), Role::Whole)));
        assert_eq!(
            of(&format!("{q}.base_layer.bias")),
            Ok((format!("{q}.bias"), Role::Whole))
        );
        assert!(of(&format!("{q}.lora_B.bias")).unwrap_err().contains("lora_B"));
        assert!(of(&format!("{q}.lora_magnitude_vector")).unwrap_err().contains("DoRA"));
        assert!(target("model.norm.weight").unwrap_err().contains("base_model.model"));
    }
}
