//! The products of public models, by which kernels are measured.

/// A product of a decoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) model: &'static str,
    pub(super) name: &'static str,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

/// `(model, hidden, query width, key and value width, intermediate, vocabulary)`, from the models' config.json.
const MODELS: [(&str, usize, usize, usize, usize, usize); 3] = [
    ("smollm2-135m", 576, 576, 384, 1536, 49_152),
    ("qwen2.5-0.5b", 896, 896, 256, 4_864, 151_936),
    ("qwen2.5-7b", 3_584, 3_584, 1_024, 18_944, 152_064),
];

/// Names of the models whose products can be measured.
pub fn models() -> impl Iterator<Item = &'static str> {
    MODELS.iter().map(|model| model.0)
}

/// The products of these models: linears that share their input are one.
pub(super) fn of_models(wanted: &[String]) -> Vec<Shape> {
    MODELS
        .iter()
        .filter(|model| wanted.iter().any(|name| name == model.0))
        .flat_map(|&(model, hidden, queries, keys_values, intermediate, vocabulary)| {
            [
                ("qkv", hidden, queries + keys_values),
                ("o", queries, hidden),
                ("gate_up", hidden, 2 * intermediate),
                ("down", intermediate, hidden),
                ("head", hidden, vocabulary),
            ]
            .map(|(name, inputs, outputs)| Shape {
                model,
                name,
                inputs,
                outputs,
            })
        })
        .collect()
}
