//! Tensors of a GGUF file with the Llama architecture as safetensors with Hugging Face's names.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use fs_err as fs;
use half::bf16;

use crate::gguf::{Gguf, Tensor};

/// Writes every tensor of `gguf` to `path`, names sorted, as bf16.
pub(super) fn write(gguf: &Gguf<'_>, path: &Path) -> anyhow::Result<()> {
    let heads = gguf.usize("llama.attention.head_count")?;
    let kv_heads = gguf.usize("llama.attention.head_count_kv")?;
    let mut tensors = Vec::new();
    for (name, tensor) in gguf.tensors() {
        let hf = hf_name(name).with_context(|| format!("tensor {name:?} has no place in a Llama model"))?;
        // llama.cpp reorders the rows of q and k for its own rotary embedding.
        let heads = match name {
            n if n.ends_with(".attn_q.weight") => Some(heads),
            n if n.ends_with(".attn_k.weight") => Some(kv_heads),
            _ => None,
        };
        tensors.push((hf, tensor, heads));
    }
    tensors.sort_by(|a, b| a.0.cmp(&b.0));

    let mut file = std::io::BufWriter::new(fs::File::create(path)?);
    let header = header(tensors.iter().map(|(name, tensor, _)| (name.as_str(), *tensor)))?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    for (name, tensor, heads) in &tensors {
        let mut values = gguf.dequantize(tensor);
        if let Some(heads) = *heads {
            values = unpermute(&values, &tensor.shape, heads).with_context(|| {
                format!(
                    "{name}: shape {:?} does not split into {heads} heads of pairs",
                    tensor.shape
                )
            })?;
        }
        // `from_f32` rounds to nearest, ties to even.
        for value in values {
            file.write_all(&bf16::from_f32(value).to_le_bytes())?;
        }
    }
    let file = file.into_inner().map_err(|e| e.into_error())?;
    file.sync_all()?;
    Ok(())
}

/// The header of a safetensors file: JSON, padded with spaces to a multiple of 8 bytes.
fn header<'a>(tensors: impl Iterator<Item = (&'a str, &'a Tensor)>) -> anyhow::Result<Vec<u8>> {
    let mut entries = serde_json::Map::new();
    entries.insert("__metadata__".to_owned(), serde_json::json!({"format": "pt"}));
    let mut offset = 0usize;
    for (name, tensor) in tensors {
        let end = offset + tensor.elements() * 2;
        entries.insert(
            name.to_owned(),
            serde_json::json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": [offset, end]}),
        );
        offset = end;
    }
    let mut header = serde_json::to_vec(&entries)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}

/// The name that Hugging Face gives a tensor of llama.cpp; `None` for an unknown one.
fn hf_name(name: &str) -> Option<String> {
    match name {
        "token_embd.weight" => return Some("model.embed_tokens.weight".to_owned()),
        "output_norm.weight" => return Some("model.norm.weight".to_owned()),
        _ => {}
    }
    let (layer, kind) = name.strip_prefix("blk.")?.strip_suffix(".weight")?.split_once('.')?;
    let layer: usize = layer.parse().ok()?;
    let part = match kind {
        "attn_norm" => "input_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => return None,
    };
    Some(format!("model.layers.{layer}.{part}.weight"))
}

/// Undoes llama.cpp's reordering of the rows of a projection `[heads · width, inputs]`: there, the two rows that the
/// rotary embedding turns together lie side by side; Hugging Face keeps them half a head apart. `None` when the shape
/// does not split that way.
fn unpermute(values: &[f32], shape: &[usize], heads: usize) -> Option<Vec<f32>> {
    let &[rows, inputs] = shape else { return None };
    let width = rows.checked_div(heads)?;
    if width * heads != rows || width % 2 != 0 || values.len() != rows * inputs {
        return None;
    }
    let half = width / 2;
    let mut out = Vec::with_capacity(values.len());
    for row in 0..rows {
        let (head, within) = (row / width, row % width);
        let (side, pair) = (within / half, within % half);
        let source = head * width + pair * 2 + side;
        out.extend_from_slice(&values[source * inputs..][..inputs]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_pair_move_half_a_head_apart() {
        // Two heads of width 4, one input: the value is the row's number.
        let values: Vec<f32> = (0..8).map(|i| i as f32).collect();
        assert_eq!(
            unpermute(&values, &[8, 1], 2).unwrap(),
            [0., 2., 1., 3., 4., 6., 5., 7.]
        );
    }

    #[test]
    fn a_shape_that_does_not_split_into_heads_is_refused() {
        assert_eq!(unpermute(&[0.0; 6], &[6, 1], 4), None);
        assert_eq!(unpermute(&[0.0; 6], &[6, 1], 0), None);
        assert_eq!(unpermute(&[0.0; 6], &[6, 1], 2), None, "heads of width 3 have no pairs");
        assert_eq!(unpermute(&[0.0; 6], &[6], 1), None);
    }

    #[test]
    fn names_of_llama_cpp_become_names_of_hugging_face() {
        for (name, expected) in [
            ("token_embd.weight", Some("model.embed_tokens.weight")),
            ("output_norm.weight", Some("model.norm.weight")),
            ("blk.12.ffn_down.weight", Some("model.layers.12.mlp.down_proj.weight")),
            ("blk.x.ffn_down.weight", None),
            ("blk.1.ffn_gate_inp.weight", None),
            ("rope_freqs.weight", None),
        ] {
            assert_eq!(hf_name(name).as_deref(), expected, "{name}");
        }
    }
}
