//! The linears of a decoder layer: their identity and their tensor names.

use std::fmt;

/// Which linear of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinearKind {
    /// Query projection.
    Q,
    /// Key projection.
    K,
    /// Value projection.
    V,
    /// Attention output projection.
    O,
    /// Gate projection of the MLP.
    Gate,
    /// Up projection of the MLP.
    Up,
    /// Down projection of the MLP.
    Down,
}

impl LinearKind {
    /// All kinds, in the order in which a layer uses them.
    pub const ALL: [Self; 7] = [Self::Q, Self::K, Self::V, Self::O, Self::Gate, Self::Up, Self::Down];

    /// The module path inside a layer, as Hugging Face names it.
    pub const fn module(self) -> &'static str {
        match self {
            Self::Q => "self_attn.q_proj",
            Self::K => "self_attn.k_proj",
            Self::V => "self_attn.v_proj",
            Self::O => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }
}

/// One linear of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinearId {
    /// Layer index from 0.
    pub layer: usize,
    /// Which linear.
    pub kind: LinearKind,
}

impl LinearId {
    /// Name of the weight tensor, e.g. `model.layers.3.mlp.up_proj.weight`.
    pub fn weight(&self) -> String {
        format!("{self}.weight")
    }

    /// Name of the bias tensor.
    pub fn bias(&self) -> String {
        format!("{self}.bias")
    }

    /// The linear whose weight tensor has this name, if it is one.
    pub fn from_weight(name: &str) -> Option<Self> {
        let (layer, module) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let module = module.strip_suffix(".weight")?;
        let kind = LinearKind::ALL.into_iter().find(|k| k.module() == module)?;
        Some(Self {
            layer: layer.parse().ok()?,
            kind,
        })
    }
}

impl fmt::Display for LinearId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model.layers.{}.{}", self.layer, self.kind.module())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_names_round_trip() {
        for kind in LinearKind::ALL {
            let id = LinearId { layer: 27, kind };
            assert_eq!(LinearId::from_weight(&id.weight()), Some(id));
        }
        assert_eq!(LinearId::from_weight("model.layers.x.mlp.up_proj.weight"), None);
        assert_eq!(LinearId::from_weight("model.norm.weight"), None);
    }
}
