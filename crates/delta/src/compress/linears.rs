//! From second moments to packed linears.
//!
//! With one budget for the model there are two passes: the first finds out what each rank would gain at each width, the
//! second quantises by the widths that the common allocation chose. Factors are made again in the second pass rather
//! than kept, so that memory holds the matrices in work and nothing of the others.
//!
//! Work is parallel over the distinct linear inputs of the model (q/k/v share one, gate/up share one), each of which
//! one thread works through alone with the same sums in the same order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use deltamux_model::{Checkpoint, LinearId};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::calibrate::{Calibration, InputId, Split};
use super::error::CompressError;
use super::finetuned::Finetuned;
use super::linalg::{Matrix, quadratic};
use super::matrix::{self, CHOICES, Candidates, RankItem};
use super::options::{Budget, CompressOptions};
use super::permits::Permits;
use super::quantise::InputMoments;
use super::work::{Record, Work};
use super::{Progress, Shard, Stage, WidthLimits, allocate};
use crate::artifact::{LinearInfo, RelError};

/// What the linears are made from.
pub(super) struct Job<'a> {
    pub base: &'a Checkpoint,
    pub finetuned: &'a Finetuned,
    pub calibration: &'a Calibration,
    pub options: &'a CompressOptions,
    /// Where finished work is kept.
    pub work: Option<&'a Work>,
    pub progress: Progress<'a>,
}

/// A compressed linear.
#[derive(Debug)]
pub(super) struct Finished {
    pub id: LinearId,
    /// Its packed bytes.
    pub bytes: Vec<u8>,
    pub about: About,
}

/// What is known of a compressed linear beside its bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct About {
    /// Its entry in the manifest, without the bytes in the file.
    pub info: LinearInfo,
    /// The allocation within the linear's own budget.
    pub allocation: Option<Allocated>,
}

/// The value of an allocation and the bound below every other one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Allocated {
    pub error: f64,
    pub bound: f64,
}

impl Allocated {
    fn of(allocation: &allocate::Allocation) -> Self {
        Self {
            error: allocation.error,
            bound: allocation.bound,
        }
    }

    /// How far all of them together may be above the optimum, relative; `None` without any, or when the bound is 0.
    pub fn gap(all: impl Iterator<Item = Self>) -> Option<f64> {
        let (error, bound) = all.fold((0.0, 0.0), |sum, a| (sum.0 + a.error, sum.1 + a.bound));
        (bound > 0.0).then(|| (error / bound - 1.0).max(0.0))
    }
}

/// The allocations that were made, each with the name of its linear or shard.
pub(super) type Allocations = Vec<(String, Allocated)>;

/// What the common allocation needs to know of a linear.
#[derive(Debug, Clone)]
struct Survey {
    /// Bits for its ranks.
    budget: u64,
    /// Bits that it takes without any, beyond its budget, and those of ranks where nothing is left to choose.
    taken: u64,
    /// What each rank may become.
    items: Vec<RankItem>,
}

/// The linears that read one input.
struct Group {
    input: InputId,
    linears: Vec<LinearId>,
}

fn groups(changed: &[LinearId]) -> Vec<Group> {
    let mut groups: BTreeMap<InputId, Vec<LinearId>> = BTreeMap::new();
    for &id in changed {
        groups.entry(InputId::of(id)).or_default().push(id);
    }
    groups
        .into_iter()
        .map(|(input, linears)| Group { input, linears })
        .collect()
}

impl Job<'_> {
    /// Compresses `changed`: the linears in model order, and the allocations that were made.
    pub fn run(&self, changed: &[LinearId]) -> Result<(Vec<Finished>, Allocations), CompressError> {
        let permits = Permits::new(self.options.memory);
        let groups = groups(changed);
        let shared = self.options.budget == Budget::Model && self.options.method.chooses_widths();
        let mut allocations = Vec::new();
        let mut chosen = BTreeMap::new();
        if shared && !changed.is_empty() {
            let surveys = self.each(&groups, &permits, Stage::Factor, |id, moments| self.survey(id, moments))?;
            let (choices, allocation) = choose(&surveys, &self.options.widths);
            chosen = choices;
            // Named so that shards sort.
            let Shard { index, count } = self.options.shard;
            allocations.push((format!("shard {index:05}/{count:05}"), Allocated::of(&allocation)));
        }
        let finished = self.each(&groups, &permits, Stage::Quantise, |id, moments| {
            self.finish(id, moments, chosen.get(&id).map(Vec::as_slice))
        })?;
        let finished: Vec<Finished> = finished.into_values().collect();
        let own = |f: &Finished| Some((f.id.to_string(), f.about.allocation?));
        allocations.extend(finished.iter().filter_map(own));
        Ok((finished, allocations))
    }

    /// Does `work` for every linear; groups share their moments, which are read when the first linear asks for them.
    fn each<T: Send>(
        &self,
        groups: &[Group],
        permits: &Permits,
        stage: Stage,
        work: impl Fn(LinearId, &mut GroupMoments<'_>) -> Result<T, CompressError> + Sync,
    ) -> Result<BTreeMap<LinearId, T>, CompressError> {
        let total = groups.iter().map(|group| group.linears.len()).sum();
        let counter = AtomicUsize::new(0);
        (self.progress)(stage, 0, total);
        let done: Vec<Vec<(LinearId, T)>> = groups
            .par_iter()
            .map(|group| {
                let mut moments = GroupMoments::new(self, group, permits);
                let each = group.linears.iter().map(|&id| {
                    let made = work(id, &mut moments)?;
                    (self.progress)(stage, counter.fetch_add(1, Ordering::Relaxed) + 1, total);
                    Ok((id, made))
                });
                each.collect()
            })
            .collect::<Result<_, CompressError>>()?;
        Ok(done.into_iter().flatten().collect())
    }

    fn survey(&self, id: LinearId, moments: &mut GroupMoments<'_>) -> Result<Survey, CompressError> {
        let (budget, debt) = self.own_budget(id);
        let survey = |settled: u64, items| Survey {
            budget,
            taken: debt + settled,
            items,
        };
        let stored = self
            .work
            .map(|work| work.load::<u64>(Record::Survey, id))
            .transpose()?
            .flatten();
        if let Some((settled, items)) = stored.and_then(|(settled, bytes)| Some((settled, decode_items(&bytes)?))) {
            return Ok(survey(settled, items));
        }
        let moments = moments.get()?;
        let delta = self.finetuned.difference(self.base, id)?;
        let scale = scale(quadratic(&delta, &moments.c));
        let candidates = self.prepare(id, &delta, moments, budget)?;
        let items = candidates.items(&moments.inputs, scale);
        if let Some(work) = self.work {
            work.store(Record::Survey, id, &candidates.settled_bits(), &encode_items(&items))?;
        }
        Ok(survey(candidates.settled_bits(), items))
    }

    /// Quantises by the `choices` of the common allocation, or by the linear's own.
    fn finish(
        &self,
        id: LinearId,
        moments: &mut GroupMoments<'_>,
        choices: Option<&[usize]>,
    ) -> Result<Finished, CompressError> {
        let stored = self
            .work
            .map(|work| work.load::<About>(Record::Linear, id))
            .transpose()?
            .flatten();
        if let Some((about, bytes)) = stored {
            return Ok(Finished { id, bytes, about });
        }
        let (budget, _) = self.own_budget(id);
        let moments = moments.get()?;
        let delta = self.finetuned.difference(self.base, id)?;
        let energy = quadratic(&delta, &moments.c);
        let heldout_energy = moments.heldout.as_ref().map(|c| quadratic(&delta, c));
        let candidates = self.prepare(id, &delta, moments, budget)?;
        let mut allocation = None;
        let choices = match choices {
            // Factors are made again as they were, on a processor like the first one.
            Some(choices)
                if !matches!(candidates.kind, matrix::Kind::Open) || choices.len() == candidates.factors.s.len() =>
            {
                choices.to_vec()
            }
            Some(_) => {
                return Err(numerics(
                    id,
                    "its factors are others than when its widths were chosen: go on with --resume on a machine of the \
                     same kind, or start afresh",
                ));
            }
            None => {
                let own = candidates.allocate(&moments.inputs, scale(energy), budget, &self.options.widths);
                allocation = own.as_ref().map(Allocated::of);
                own.map(|own| own.choices).unwrap_or_default()
            }
        };
        let approximation = candidates
            .quantise(&delta, &moments.inputs, &choices)
            .map_err(|e| numerics(id, e))?;
        let residual_energy = candidates.factors.residual_energy;
        drop(candidates);
        let mut rest = delta;
        rest.data
            .iter_mut()
            .zip(&approximation.dense.data)
            .for_each(|(d, a)| *d -= a);
        let relative = |energy: f64, c: &Matrix<f32>| (energy > 0.0).then(|| quadratic(&rest, c) / energy);
        let error = RelError {
            calibration: relative(energy, &moments.c),
            heldout: moments
                .heldout
                .as_ref()
                .zip(heldout_energy)
                .and_then(|(c, e)| relative(e, c)),
        };
        let about = About {
            info: LinearInfo::new(&id, &approximation.packed, error, residual_energy),
            allocation,
        };
        let bytes = approximation.packed.encode();
        if let Some(work) = self.work {
            work.store(Record::Linear, id, &about, &bytes)?;
        }
        Ok(Finished { id, bytes, about })
    }

    fn prepare(
        &self,
        id: LinearId,
        delta: &Matrix<f32>,
        moments: &Moments,
        budget: u64,
    ) -> Result<Candidates, CompressError> {
        matrix::prepare(delta, &moments.inputs, self.options.method, budget).map_err(|e| numerics(id, e))
    }

    fn own_budget(&self, id: LinearId) -> (u64, u64) {
        let (outputs, inputs) = self.base.config().linear_shape(id.kind);
        matrix::own_budget(&id.to_string(), inputs, outputs, self.options.ratio())
    }
}

/// Inputs that are zero on all calibration texts: any approximation will do, and any scale.
fn scale(energy: f64) -> f64 {
    if energy > 0.0 { energy } else { 1.0 }
}

/// The moments of a group's input, read at the first use and kept for the group.
struct GroupMoments<'a> {
    job: &'a Job<'a>,
    group: &'a Group,
    permits: &'a Permits,
    read: Option<(Moments, super::permits::Permit<'a>)>,
}

/// The moments of an input.
struct Moments {
    inputs: InputMoments,
    /// `C` in f32.
    c: Matrix<f32>,
    /// `C` of the held-out texts.
    heldout: Option<Matrix<f32>>,
}

impl<'a> GroupMoments<'a> {
    fn new(job: &'a Job<'a>, group: &'a Group, permits: &'a Permits) -> Self {
        Self {
            job,
            group,
            permits,
            read: None,
        }
    }

    fn get(&mut self) -> Result<&Moments, CompressError> {
        if self.read.is_none() {
            let config = self.job.base.config();
            let shapes = self.group.linears.iter().map(|id| config.linear_shape(id.kind));
            let permit = self
                .permits
                .take(shapes.map(|(o, i)| work_bytes(i, o)).max().unwrap_or(0));
            self.read = Some((self.load()?, permit));
        }
        match &self.read {
            Some((moments, _)) => Ok(moments),
            None => Err(self.numerics("its second moments are not there")),
        }
    }

    fn load(&self) -> Result<Moments, CompressError> {
        let (_, inputs) = self.job.base.config().linear_shape(self.group.input.first);
        let calibration = self.job.calibration;
        let c: Matrix<f64> = calibration
            .moments(self.group.input, Split::Calibration, inputs)?
            .ok_or_else(|| self.numerics("calibration never showed its inputs"))?;
        Ok(Moments {
            c: c.to_f32(),
            inputs: InputMoments::new(c).map_err(|e| self.numerics(&e.to_string()))?,
            heldout: calibration.moments(self.group.input, Split::Heldout, inputs)?,
        })
    }

    fn numerics(&self, what: &str) -> CompressError {
        CompressError::Numerics {
            tensor: self.group.linears.first().map(LinearId::weight).unwrap_or_default(),
            what: what.to_string(),
        }
    }
}

/// Bytes that work on an `[outputs, inputs]` matrix takes at its height: `C` and what is derived from it, and a few
/// copies of the difference and of all its factors.
fn work_bytes(inputs: usize, outputs: usize) -> u64 {
    let (inputs, outputs) = (inputs as u64, outputs as u64);
    let ranks = inputs.min(outputs);
    28 * inputs * inputs + 48 * inputs * outputs + 48 * ranks * (inputs + outputs)
}

/// The choices of every linear's ranks within the budgets of all of them together.
fn choose(
    surveys: &BTreeMap<LinearId, Survey>,
    widths: &WidthLimits,
) -> (BTreeMap<LinearId, Vec<usize>>, allocate::Allocation) {
    let all: Vec<RankItem> = surveys
        .values()
        .flat_map(|survey| survey.items.iter().copied())
        .collect();
    let sum = |bits: fn(&Survey) -> u64| surveys.values().map(bits).sum::<u64>();
    let total = sum(|s| s.budget).saturating_sub(sum(|s| s.taken));
    let allocation = widths.allocate(&all, total);
    let mut rest = allocation.choices.as_slice();
    let choices = surveys
        .iter()
        .map(|(id, survey)| {
            let (mine, after) = rest.split_at(survey.items.len());
            rest = after;
            (*id, mine.to_vec())
        })
        .collect();
    (choices, allocation)
}

/// Costs of all items, then the errors of each, little-endian.
fn encode_items(items: &[RankItem]) -> Vec<u8> {
    let costs = items.first().map_or([0; CHOICES], |item| item.costs);
    let costs = costs.iter().flat_map(|cost| cost.to_le_bytes());
    let errors = items.iter().flat_map(|item| item.errors).flat_map(f64::to_le_bytes);
    costs.chain(errors).collect()
}

fn decode_items(bytes: &[u8]) -> Option<Vec<RankItem>> {
    let (words, []) = bytes.as_chunks::<8>() else {
        return None;
    };
    let (costs, errors) = words.split_first_chunk::<CHOICES>()?;
    let costs = costs.map(u64::from_le_bytes);
    let (errors, []) = errors.as_chunks::<CHOICES>() else {
        return None;
    };
    let item = |errors: &[[u8; 8]; CHOICES]| RankItem {
        errors: errors.map(f64::from_le_bytes),
        costs,
    };
    Some(errors.iter().map(item).collect())
}

fn numerics(id: LinearId, error: impl std::fmt::Display) -> CompressError {
    CompressError::Numerics {
        tensor: id.weight(),
        what: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_read_back_as_they_were() {
        let item = |seed: u64| RankItem {
            errors: std::array::from_fn(|i| 0.1 / (seed + i as u64 + 1) as f64),
            costs: std::array::from_fn(|i| 100 * i as u64),
        };
        for count in [0, 1, 5] {
            let items: Vec<RankItem> = (0..count).map(item).collect();
            assert_eq!(decode_items(&encode_items(&items)), Some(items));
        }
        assert_eq!(decode_items(&[0; 65]), None);
        assert_eq!(decode_items(&[0; 72]), None);
    }
}
