//! The difference that one pair of LoRA matrices stands for.

/// `ΔW = scale · B A`, `[outputs, inputs]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    pub(super) scale: f32,
    pub(super) rank: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) a: Vec<f32>,
    pub(super) b: Vec<f32>,
}

impl Difference {
    /// The factor: `alpha / rank`, or `alpha / √rank` (rsLoRA).
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Rows of A and columns of B.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Rows of the difference.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Columns of the difference.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// A, `[rank, inputs]`, row-major.
    pub fn a(&self) -> &[f32] {
        &self.a
    }

    /// B, `[outputs, rank]`, row-major.
    pub fn b(&self) -> &[f32] {
        &self.b
    }

    /// Adds the difference to `weights`, `[outputs, inputs]`, row-major. Each element is summed over the ranks in f64
    /// and rounded once.
    ///
    /// # Panics
    /// If `weights` has another length.
    pub fn add_to(&self, weights: &mut [f32]) {
        assert_eq!(
            weights.len(),
            self.outputs * self.inputs,
            "weights of the adapted matrix"
        );
        let scale = f64::from(self.scale);
        let mut row = vec![0f64; self.inputs];
        for (weights, b) in weights
            .chunks_exact_mut(self.inputs)
            .zip(self.b.chunks_exact(self.rank))
        {
            row.fill(0.0);
            for (&b, a) in b.iter().zip(self.a.chunks_exact(self.inputs)) {
                let b = f64::from(b);
                row.iter_mut().zip(a).for_each(|(sum, &a)| *sum += b * f64::from(a));
            }
            let sums = weights.iter_mut().zip(&row);
            sums.for_each(|(w, sum)| *w = (f64::from(*w) + scale * sum) as f32);
        }
    }
}

/// `[rows, cols]` to `[cols, rows]`.
pub(super) fn transposed(values: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for column in 0..cols {
        out.extend((0..rows).map(|row| values[row * cols + column]));
    }
    out
}
