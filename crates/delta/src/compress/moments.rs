//! Second moments of a linear's input: gathered in f64, kept in files.
//!
//! ```text
//! magic     8 bytes, "DMXMOM1\n"
//! inputs    u64, little-endian
//! rows      u64: input rows that were seen
//! values    f32, lower triangle of C = X Xᵀ / rows, row after row, the diagonal included
//! digest    SHA-256 of everything before it
//! ```

use std::io::{self, BufReader, BufWriter, Read as _};
use std::path::Path;

use faer::linalg::matmul::matmul;
use faer::{Accum, MatRef, Par};
use rayon::prelude::*;
use sha2::{Digest as _, Sha256};

use super::error::CompressError;
use super::linalg::Matrix;
use crate::temp;

const MAGIC: &[u8; 8] = b"DMXMOM1\n";

/// Bytes before the values.
const HEADER: usize = 24;

/// Rows of `C` that one task updates. Fixed, so that sums do not depend on the number of threads.
const BLOCK: usize = 128;

/// A running sum of `x xᵀ`, lower triangle in blocks of rows: products of one call in f32, their sum in f64.
#[derive(Debug)]
pub(crate) struct Moments {
    inputs: usize,
    blocks: Vec<Matrix<f64>>,
    rows: u64,
}

impl Moments {
    pub fn new(inputs: usize) -> Self {
        let blocks = (0..inputs)
            .step_by(BLOCK)
            .map(|start| {
                let end = (start + BLOCK).min(inputs);
                Matrix::zeros(end - start, end)
            })
            .collect();
        Self {
            inputs,
            blocks,
            rows: 0,
        }
    }

    /// Adds rows `[n, inputs]`.
    pub fn add(&mut self, rows: &[f32]) {
        let x = MatRef::from_row_major_slice(rows, rows.len() / self.inputs, self.inputs);
        self.rows += x.nrows() as u64;
        self.blocks.par_iter_mut().enumerate().for_each(|(b, block)| {
            let (start, count, end) = (b * BLOCK, block.rows, block.cols);
            let mut sum = Matrix::<f32>::zeros(count, end);
            let left = x.subcols(start, count).transpose();
            matmul(sum.view_mut(), Accum::Replace, left, x.subcols(0, end), 1.0, Par::Seq);
            block
                .data
                .iter_mut()
                .zip(&sum.data)
                .for_each(|(total, &x)| *total += f64::from(x));
        });
    }

    /// Writes `C` to `path`, which appears as a whole or not at all.
    pub fn write(&self, path: &Path) -> Result<(), CompressError> {
        let dir = path.parent().unwrap_or(Path::new("."));
        let mut temp = temp::create_in(dir)?;
        self.put(&mut temp).map_err(|e| temp::named(path, e))?;
        Ok(temp::persist(temp, path)?)
    }

    fn put(&self, temp: &mut tempfile::NamedTempFile) -> io::Result<()> {
        let mut writer = Hashing::new(BufWriter::new(temp.as_file_mut()));
        writer.put(MAGIC)?;
        writer.put(&(self.inputs as u64).to_le_bytes())?;
        writer.put(&self.rows.to_le_bytes())?;
        let scale = 1.0 / self.rows.max(1) as f64;
        let mut bytes = Vec::with_capacity(4 * self.inputs);
        for (b, block) in self.blocks.iter().enumerate() {
            for i in 0..block.rows {
                let row = &block.row(i)[..b * BLOCK + i + 1];
                bytes.clear();
                bytes.extend(row.iter().flat_map(|x| ((x * scale) as f32).to_le_bytes()));
                writer.put(&bytes)?;
            }
        }
        writer.finish()
    }
}

struct Hashing<W> {
    inner: W,
    hash: Sha256,
}

impl<W: io::Write> Hashing<W> {
    fn new(inner: W) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.inner.write_all(bytes)
    }

    fn finish(mut self) -> io::Result<()> {
        self.inner.write_all(&self.hash.finalize())?;
        self.inner.flush()
    }
}

/// Whether `path` is a file of the right length for `inputs` inputs: it was written to its end.
pub(crate) fn is_complete(path: &Path, inputs: usize) -> bool {
    path.metadata()
        .is_ok_and(|m| m.is_file() && m.len() == file_bytes(inputs))
}

fn file_bytes(inputs: usize) -> u64 {
    let n = inputs as u64;
    HEADER as u64 + 4 * (n * (n + 1) / 2) + 32
}

/// Reads the whole symmetric `C` of `inputs` inputs.
pub(crate) fn read<T>(path: &Path, inputs: usize) -> Result<Matrix<T>, CompressError>
where
    T: From<f32> + Copy + Default,
{
    let damaged = |what: &str| CompressError::Damaged {
        path: path.to_path_buf(),
        what: format!("{what}: the stored second moments are damaged; delete this file and run again"),
    };
    let file = fs_err::File::open(path)?;
    if file.metadata()?.len() != file_bytes(inputs) {
        return Err(damaged("has another length than the model needs"));
    }
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut hash = Sha256::new();
    let mut header = [0; HEADER];
    reader.read_exact(&mut header)?;
    hash.update(header);
    if header[..8] != *MAGIC || header[8..16] != (inputs as u64).to_le_bytes() {
        return Err(damaged("has another header than expected"));
    }
    let mut c = Matrix::zeros(inputs, inputs);
    let mut bytes = vec![0; 4 * inputs];
    for row in 0..inputs {
        let bytes = &mut bytes[..4 * (row + 1)];
        reader.read_exact(bytes)?;
        hash.update(&*bytes);
        for (col, x) in bytes.chunks_exact(4).enumerate() {
            let x = f32::from_le_bytes([x[0], x[1], x[2], x[3]]);
            if !x.is_finite() {
                return Err(damaged("holds a number that is not finite"));
            }
            c.data[row * inputs + col] = T::from(x);
        }
    }
    let mut digest = [0; 32];
    reader.read_exact(&mut digest)?;
    if digest != *hash.finalize() {
        return Err(damaged("does not have the SHA-256 that it ends with"));
    }
    c.mirror_lower();
    Ok(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(n: usize) -> Vec<f32> {
        (0..5 * n).map(|i| ((i * 31 % 17) as f32 - 8.0) / 8.0).collect()
    }

    #[test]
    fn what_is_read_is_the_mean_outer_product() {
        let n = 200;
        let rows = rows(n);
        let mut moments = Moments::new(n);
        moments.add(&rows[..2 * n]);
        moments.add(&rows[2 * n..]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c");
        moments.write(&path).unwrap();
        assert!(is_complete(&path, n) && !is_complete(&path, n + 1));
        let c: Matrix<f64> = read(&path, n).unwrap();
        for (i, j) in (0..n).flat_map(|i| [(i, 0), (0, i), (i, n - 1), (i, i), (i, i / 2)]) {
            let expected: f64 = (0..5)
                .map(|r| f64::from(rows[r * n + i]) * f64::from(rows[r * n + j]))
                .sum::<f64>()
                / 5.0;
            assert!((c.row(i)[j] - expected).abs() < 1e-6, "{i} {j}");
        }
    }

    #[test]
    fn a_changed_byte_is_refused_by_the_files_name() {
        let n = 20;
        let mut moments = Moments::new(n);
        moments.add(&rows(n));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("L000-q.calibration");
        moments.write(&path).unwrap();
        let good = fs_err::read(&path).unwrap();
        for at in [0, 9, HEADER, good.len() - 40, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            fs_err::write(&path, bad).unwrap();
            let error = read::<f32>(&path, n).unwrap_err().to_string();
            assert!(
                error.contains("L000-q.calibration") && error.contains("delete this file"),
                "{error}"
            );
        }
        fs_err::write(&path, &good[..good.len() - 1]).unwrap();
        assert!(read::<f32>(&path, n).is_err());
    }
}
