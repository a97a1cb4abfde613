//! Whether a fine-tune can be a difference to a base at all.

use deltamux_model::{Checkpoint, LinearId};
use rayon::prelude::*;

use super::error::CompressError;
use super::finetuned::Finetuned;

/// Above this `‖ΔW‖ / ‖W‖` over all linears the base is taken for the wrong one: fine-tunes stay below 0.3, and
/// unrelated weights of equal size are at √2.
pub const LARGEST_DIFFERENCE: f64 = 0.7;

/// Refuses configurations that differ in what changes the arithmetic, naming every field with both values.
pub(crate) fn check_configs(base: &Checkpoint, finetuned: &Finetuned) -> Result<(), CompressError> {
    let ours = base.config().arithmetic_fields();
    let theirs = finetuned.config().arithmetic_fields();
    let differing: Vec<String> = ours
        .iter()
        .zip(&theirs)
        .filter(|(a, b)| a != b)
        .map(|((name, a), (_, b))| format!("{name} is {b}, but {a} in the base {}", base.dir().display()))
        .collect();
    if differing.is_empty() {
        return Ok(());
    }
    Err(CompressError::Mismatch {
        finetuned: finetuned.dir().to_path_buf(),
        what: format!(
            "{}; a variant shares the base's arithmetic, so compress it against the base it was tuned from",
            differing.join("; ")
        ),
    })
}

/// The linears that changed, in model order, and `‖ΔW‖ / ‖W‖` over all linears.
pub(crate) fn changed_linears(base: &Checkpoint, finetuned: &Finetuned) -> Result<(Vec<LinearId>, f64), CompressError> {
    let ids: Vec<LinearId> = base.config().linears().collect();
    let measured: Vec<(f64, f64)> = ids
        .par_iter()
        .map(|&id| {
            let (outputs, inputs) = base.config().linear_shape(id.kind);
            let ours = base.expect(&id.weight(), &[outputs, inputs])?;
            let theirs = finetuned.expect(&id.weight(), &[outputs, inputs])?;
            let theirs = theirs.view();
            // Row by row: many threads together would hold much of the model.
            let (mut w, mut t) = (vec![0f32; inputs], vec![0f32; inputs]);
            let (mut difference, mut size) = (0.0, 0.0);
            for row in 0..outputs {
                ours.read_row(row, &mut w);
                theirs.read_row(row, &mut t);
                for (&w, &t) in w.iter().zip(&t) {
                    difference += f64::from(t - w).powi(2);
                    size += f64::from(w).powi(2);
                }
            }
            Ok((difference, size))
        })
        .collect::<Result<_, CompressError>>()?;
    let changed = ids
        .iter()
        .zip(&measured)
        .filter(|(_, (difference, _))| *difference > 0.0)
        .map(|(&id, _)| id)
        .collect();
    let (difference, size) = measured.iter().fold((0.0, 0.0), |sum, m| (sum.0 + m.0, sum.1 + m.1));
    let relative = if difference > 0.0 {
        (difference / size).sqrt()
    } else {
        0.0
    };
    Ok((changed, relative))
}

/// Refuses a difference that no fine-tune makes.
pub(crate) fn check_difference(
    base: &Checkpoint,
    finetuned: &Finetuned,
    relative: f64,
    force: bool,
) -> Result<(), CompressError> {
    if relative <= LARGEST_DIFFERENCE || force {
        return Ok(());
    }
    Err(CompressError::Mismatch {
        finetuned: finetuned.dir().to_path_buf(),
        what: format!(
            "its linears differ from those of {} by {relative:.2} of their size (‖ΔW‖/‖W‖; at most {LARGEST_DIFFERENCE} is expected), so that is not the base it was tuned from; give the right --base, or --force to go on",
            base.dir().display()
        ),
    })
}
