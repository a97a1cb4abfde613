//! A variant: packed factors with random codes, as many and as wide as PrinMix would store of a difference whose
//! singular values fall as those of fine-tunes do.
//!
//! Nothing is compressed, so nothing is measured: the manifest's errors are absent.

use std::path::Path;

use deltamux_kernels::lowbit::{WIDTHS, groups, row_bytes};
use deltamux_model::{Checkpoint, DType, LinearId};
use half::{bf16, f16};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore as _;
use rayon::prelude::*;

use super::base::linear_deviation;
use super::random::{Streams, gaussian};
use super::{METHOD, SynthError};
use crate::artifact::{
    ArtifactWriter, BaseInfo, CalibrationInfo, Coding, EmbeddingInfo, FORMAT_VERSION, LinearInfo, MANIFEST_FILE,
    Manifest, Packed, PackedBand, PackedLinear, RelError, Target, Totals, vector_lengths,
};
use crate::compress::account::{CHOICES, rank_bits};
use crate::compress::allocate::{Item, allocate};
use crate::compress::{matrix, quantise};

/// Norm of a linear's difference over the norm of its weights, and so about of its outputs over the base's.
const DIFFERENCE: f64 = 0.04;

/// Relative change of norms and biases.
const VECTOR_CHANGE: f32 = 0.01;

/// Singular value `i` of `n` is proportional to `(i/n + HEAD)^-slope`. With these the widths at 1/16 are shared as in
/// the bundled `sql` fine-tune (`compress --method prinmix`: 54 % of the ranks at 2 bits, 32 % at 3, 14 % at 4).
const HEAD: f64 = 0.03;
const SLOPES: (f64, f64) = (0.8, 1.1);

/// Error of a rank at b bits, as a share of its energy: this times 4⁻ᵇ, half of it from V and half from U.
const ROUNDING: f64 = 2.4;

/// A linear before its widths are known.
struct Spectrum {
    id: LinearId,
    /// Share of the difference's energy that each candidate rank has.
    energies: Vec<f64>,
    /// Bits that it may take by itself.
    budget: u64,
}

/// Writes the variant `name` of `base` at the directory `out`; returns its manifest.
pub(super) fn write(base: &Checkpoint, name: &str, seed: u64, ratio: f64, out: &Path) -> Result<Manifest, SynthError> {
    let target = Target::new(out, false, MANIFEST_FILE)?;
    let config = base.config();
    let streams = |part: &dyn std::fmt::Display| Streams::new(seed, &format!("{name}/{part}"));
    let spectra: Vec<Spectrum> = config
        .linears()
        .map(|id| spectrum(base, id, ratio, &mut streams(&id).stream(0)))
        .collect();
    let widths = widths(base, &spectra);
    if widths.iter().flatten().all(|&bits| bits == 0) {
        return Err(SynthError::Option(format!(
            "ratio {ratio} leaves no room for a single rank of any linear: raise --ratio"
        )));
    }
    let packed: Vec<(LinearInfo, Vec<u8>)> = spectra
        .par_iter()
        .zip(&widths)
        .map(|(spectrum, widths)| {
            let linear = Packed::Factors(pack(base, spectrum, widths, &mut streams(&spectrum.id).stream(1)));
            (
                LinearInfo::new(&spectrum.id, &linear, RelError::default(), None),
                linear.encode(),
            )
        })
        .collect();

    let mut writer = ArtifactWriter::new();
    let mut linears = Vec::new();
    for (info, bytes) in packed {
        if info.ranks > 0 {
            writer.raw(&info.name, "U8", vec![bytes.len()], bytes);
        }
        linears.push(info);
    }
    let mut vectors = Vec::new();
    for (name, length) in vector_lengths(config) {
        let mut rng = streams(&name).stream(0);
        let values = base.expect(&name, &[length])?.to_f32();
        let changed = values
            .into_iter()
            .map(|value| bf16::from_f32(value * (1.0 + VECTOR_CHANGE * gaussian(&mut rng))));
        let bytes = changed.flat_map(bf16::to_le_bytes).collect();
        writer.raw(&name, DType::Bf16.name(), vec![length], bytes);
        vectors.push(name);
    }
    let (delta, sizes) = writer.write(&target)?;
    LinearInfo::set_bytes(&mut linears, &sizes);
    let files = vec![delta];
    let manifest = Manifest {
        format_version: FORMAT_VERSION,
        name: name.to_owned(),
        method: METHOD.to_owned(),
        ratio,
        budget: "model".to_owned(),
        base: BaseInfo::of(base),
        vocab_size: None,
        unchanged_linears: 0,
        totals: Totals::of(&linears, &files),
        linears,
        embedding: EmbeddingInfo::Unchanged,
        head: (!config.tie_word_embeddings).then_some(EmbeddingInfo::Unchanged),
        vectors,
        rel_output_error: RelError::default(),
        allocation_gap: None,
        calibration: CalibrationInfo {
            source: "none".to_owned(),
            ..CalibrationInfo::default()
        },
        files,
    };
    manifest.write(&target)?;
    target.publish()?;
    Ok(manifest)
}

/// A spectrum of random slope for the candidate ranks of a linear.
fn spectrum(base: &Checkpoint, id: LinearId, ratio: f64, rng: &mut ChaCha8Rng) -> Spectrum {
    let (outputs, inputs) = base.config().linear_shape(id.kind);
    let (budget, _) = matrix::own_budget(&id.to_string(), inputs, outputs, ratio);
    let full = outputs.min(inputs);
    let unit = f64::from(rng.next_u32()) / f64::from(u32::MAX);
    let slope = SLOPES.0 + unit * (SLOPES.1 - SLOPES.0);
    let mut energies: Vec<f64> = (0..full)
        .map(|i| (i as f64 / full as f64 + HEAD).powf(-2.0 * slope))
        .collect();
    let sum: f64 = energies.iter().sum();
    energies.truncate(matrix::candidate_ranks(inputs, outputs, budget));
    energies.iter_mut().for_each(|energy| *energy /= sum);
    Spectrum { id, energies, budget }
}

/// The width of every candidate rank, by PrinMix's knapsack over the whole model.
fn widths(base: &Checkpoint, spectra: &[Spectrum]) -> Vec<Vec<u8>> {
    let items: Vec<Item<5>> = spectra
        .iter()
        .flat_map(|spectrum| {
            let (outputs, inputs) = base.config().linear_shape(spectrum.id.kind);
            let costs = CHOICES.map(|bits| rank_bits(inputs, outputs, bits));
            spectrum.energies.iter().map(move |energy| Item {
                errors: CHOICES.map(|bits| match bits {
                    0 => *energy,
                    _ => energy * ROUNDING * 4f64.powi(-i32::from(bits)),
                }),
                costs,
            })
        })
        .collect();
    let budget = spectra.iter().map(|spectrum| spectrum.budget).sum();
    let choices = allocate(&items, budget).choices;
    let mut rest = choices.as_slice();
    spectra
        .iter()
        .map(|spectrum| {
            let (mine, after) = rest.split_at(spectrum.energies.len());
            rest = after;
            mine.iter().map(|&choice| CHOICES[choice]).collect()
        })
        .collect()
}

/// Random factors for the ranks of a linear.
fn pack(base: &Checkpoint, spectrum: &Spectrum, widths: &[u8], rng: &mut ChaCha8Rng) -> PackedLinear {
    let config = base.config();
    let (outputs, inputs) = config.linear_shape(spectrum.id.kind);
    let weights = f64::from(linear_deviation(config, spectrum.id.kind)) * ((inputs * outputs) as f64).sqrt();
    let mut values = Vec::new();
    let (mut v, mut u) = (Vec::new(), Vec::new());
    for bits in WIDTHS {
        let before = values.len();
        let of_width = spectrum
            .energies
            .iter()
            .zip(widths)
            .filter(|(_, width)| **width == bits);
        values.extend(of_width.map(|(energy, _)| DIFFERENCE * weights * energy.sqrt()));
        let ranks = values.len() - before;
        if ranks > 0 {
            v.push(rows(ranks, inputs, bits, rng));
            u.push(rows(ranks, outputs, bits, rng));
        }
    }
    let (unit, s) = quantise::store_singular_values(values.iter().copied());
    PackedLinear {
        inputs,
        outputs,
        unit,
        s,
        coding: Coding::Affine,
        v,
        u,
    }
}

/// Rows of random codes with norm 1 on average. `len` is a multiple of 8: then every byte holds codes only.
fn rows(ranks: usize, len: usize, bits: u8, rng: &mut ChaCha8Rng) -> PackedBand {
    let mut codes = vec![0; ranks * row_bytes(len, bits)];
    rng.fill_bytes(&mut codes);
    let levels = f64::from(1u32 << bits);
    // The mean of the codes lies half-way between two zero points; either at random keeps rows free of a common part.
    let zeros = (0..ranks * groups(len))
        .map(|_| (1u8 << (bits - 1)) - (rng.next_u32() & 1) as u8)
        .collect();
    let mean_square = (levels * levels - 1.0) / 12.0 + 0.25;
    let scale = f16::from_f64(1.0 / (len as f64 * mean_square).sqrt());
    PackedBand {
        bits,
        ranks,
        codes,
        scales: vec![scale.to_bits(); ranks * groups(len)],
        zeros,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use deltamux_model::Checkpoint;
    use tempfile::TempDir;

    use super::super::base::{self, SHARD_BYTES};
    use super::super::{Shape, SynthError};
    use super::DIFFERENCE;
    use crate::Artifact;

    fn base(dir: &TempDir) -> Checkpoint {
        let out = dir.path().join("base");
        base::write(Shape::from_name("tiny").unwrap(), 7, &out, SHARD_BYTES, &|_, _, _| {}).unwrap();
        Checkpoint::open(&out).unwrap()
    }

    #[test]
    fn an_artifact_keeps_its_ratio_and_has_each_width_as_often_as_fine_tunes_do() {
        let dir = tempfile::tempdir().unwrap();
        let base = base(&dir);
        let out = dir.path().join("v");
        let manifest = super::write(&base, "v", 1, 1.0 / 16.0, &out).unwrap();
        let ratio = manifest.totals.linear_ratio.unwrap();
        assert!(ratio <= 1.0 / 16.0 && ratio > 0.98 / 16.0, "{ratio}");
        let mut ranks: BTreeMap<&str, usize> = BTreeMap::new();
        for (bits, count) in manifest.linears.iter().flat_map(|linear| &linear.bits) {
            *ranks.entry(bits).or_default() += count;
        }
        ranks.remove("0");
        let all: usize = ranks.values().sum();
        let share = |bits: &str| ranks.get(bits).map_or(0.0, |&count| count as f64 / all as f64);
        // Of the bundled `sql` fine-tune 0.54, 0.32 and 0.14.
        for (bits, expected) in [("2", 0.54), ("3", 0.32), ("4", 0.14), ("8", 0.0)] {
            assert!((share(bits) - expected).abs() < 0.06, "{bits} bits: {}", share(bits));
        }
    }

    #[test]
    fn the_difference_is_a_few_percent_of_the_weights() {
        let dir = tempfile::tempdir().unwrap();
        let base = base(&dir);
        let out = dir.path().join("v");
        super::write(&base, "v", 1, 1.0 / 16.0, &out).unwrap();
        let weights = Artifact::open(&out)
            .unwrap()
            .load(base.config(), &base.digest())
            .unwrap();
        let norm = |values: &[f32]| values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        for (id, delta) in &weights.linears {
            let share = norm(&delta.to_dense()) / norm(&base.tensor(&id.weight()).unwrap().to_f32());
            assert!(share > 0.5 * DIFFERENCE && share < 1.5 * DIFFERENCE, "{id}: {share}");
        }
        assert_eq!(weights.linears.len(), base.config().linears().count());
        assert!(weights.vectors.contains_key("model.layers.0.self_attn.q_proj.bias"));
    }

    #[test]
    fn variants_differ_and_a_ratio_without_room_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let base = base(&dir);
        let write = |name: &str, seed: u64, ratio: f64| {
            super::write(&base, name, seed, ratio, &dir.path().join(format!("{name}-{seed}")))
                .map(|manifest| manifest.generation())
        };
        let generations = [
            write("a", 1, 0.1).unwrap(),
            write("b", 1, 0.1).unwrap(),
            write("a", 2, 0.1).unwrap(),
        ];
        assert!(generations[0] != generations[1] && generations[0] != generations[2]);
        let error = write("c", 1, 1e-6).unwrap_err();
        assert!(
            matches!(&error, SynthError::Option(what) if what.contains("raise --ratio")),
            "{error}"
        );
        assert!(!dir.path().join("c-1").exists());
    }
}
