//! A quantised low-rank difference to a linear: `y += U (s ⊙ (V x))`.

/// The ranks of one width, in order of falling singular value.
#[derive(Debug, Clone)]
pub struct Band {
    /// Bits a weight: 8, 4, 3 or 2, or 16 for f16 weights without scales and zero points.
    pub bits: u8,
    /// Number of ranks.
    pub ranks: usize,
    /// Codes of V: `ranks` rows of `inputs` weights, laid out as [`crate::lowbit`] says.
    pub v_codes: Bytes,
    /// Scales of V, `[ranks, groups(inputs)]`.
    pub v_scales: Vec<f32>,
    /// Zero points of V, same shape.
    pub v_zeros: Vec<u8>,
    /// Codes of Uᵀ: `ranks` rows of `outputs` weights.
    pub u_codes: Bytes,
    /// Scales of Uᵀ, `[ranks, groups(outputs)]`.
    pub u_scales: Vec<f32>,
    /// Zero points of Uᵀ, same shape.
    pub u_zeros: Vec<u8>,
}

/// Shared bytes: owned, or a window of a memory-mapped artifact.
#[derive(Clone)]
pub struct Bytes {
    owner: std::sync::Arc<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
    len: usize,
}

impl Bytes {
    /// The window `start .. start + len` of `owner`.
    ///
    /// # Panics
    /// If the window does not lie inside the owner's bytes.
    pub fn window(owner: std::sync::Arc<dyn AsRef<[u8]> + Send + Sync>, start: usize, len: usize) -> Self {
        assert!(start.checked_add(len).is_some_and(|end| end <= (*owner).as_ref().len()));
        Self { owner, start, len }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self {
            owner: std::sync::Arc::new(bytes),
            start: 0,
            len,
        }
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.start..self.start + self.len]
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({})", self.len)
    }
}

/// The quantised factors of one linear's difference.
#[derive(Debug, Clone)]
pub struct LowRankDelta {
    /// Length of an input row.
    pub inputs: usize,
    /// Length of an output row.
    pub outputs: usize,
    /// Singular value of each rank, bands one after another.
    pub s: Vec<f32>,
    /// Bands, widest first.
    pub bands: Vec<Band>,
}

impl LowRankDelta {
    /// Adds the difference: `y[m] += U (s ⊙ (V x[m]))` for each of the `rows` rows; `x` is `[rows, inputs]`, `y`
    /// `[rows, outputs]`.
    pub fn add_to(&self, _x: &[f32], _rows: usize, _y: &mut [f32], _threads: &crate::Threads) {
        todo!()
    }

    /// Adds row `output` of the dense difference to `row` (length `inputs`): what an embedding look-up needs.
    pub fn add_dense_row(&self, _output: usize, _row: &mut [f32]) {
        todo!()
    }

    /// The dense difference `[outputs, inputs]`, row-major.
    pub fn to_dense(&self) -> Vec<f32> {
        todo!()
    }
}
