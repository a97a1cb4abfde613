//! Which variants are in memory: registered → loading → resident → evicted or refused.
//!
//! Pure policy: [`Residency::next_load`] says what to load and evicts what must go for it; the loader thread reads,
//! and reports with [`Residency::loaded`] or [`Residency::refused`]. A running request holds a [`Lease`]: its variant
//! cannot be evicted, and a generation that was replaced or unregistered lives as long as requests run on it.

mod budget;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use budget::{Budget, Reservation};

use crate::scheduler::{Availability, Demand, ModelKey};

/// Weights in memory with the bytes they take.
#[derive(Debug)]
pub(crate) struct Loaded<W> {
    /// The weights.
    pub(crate) weights: W,
    _reservation: Reservation,
}

/// Keeps a variant's weights in memory.
pub(crate) type Lease<W> = Arc<Loaded<W>>;

#[derive(Debug)]
enum Slot<W> {
    Registered,
    Loading {
        reservation: Reservation,
    },
    Resident {
        weights: Lease<W>,
        since: Duration,
        last_used: Duration,
        /// Set while the variant has to make room: only requests that arrived by then may still start.
        drains: Option<Duration>,
    },
    Refused,
}

impl<W> Slot<W> {
    fn resident(weights: W, reservation: Reservation, now: Duration) -> Self {
        Self::Resident {
            weights: Arc::new(Loaded {
                weights,
                _reservation: reservation,
            }),
            since: now,
            last_used: now,
            drains: None,
        }
    }
}

#[derive(Debug)]
struct Entry<W> {
    bytes: u64,
    slot: Slot<W>,
}

/// What changed in [`Residency::next_load`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    /// To be read by the loader thread.
    pub(crate) load: Option<ModelKey>,
    /// No longer in memory.
    pub(crate) evicted: Vec<ModelKey>,
}

/// The variants' places in memory.
#[derive(Debug)]
pub(crate) struct Residency<W> {
    budget: Budget,
    entries: HashMap<ModelKey, Entry<W>>,
    loads: u64,
    evictions: u64,
}

impl<W> Residency<W> {
    /// Nothing registered, `bytes` for resident variants.
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            budget: Budget::new(bytes),
            entries: HashMap::new(),
            loads: 0,
            evictions: 0,
        }
    }

    /// Makes a variant known.
    pub(crate) fn register(&mut self, key: ModelKey, bytes: u64) {
        self.entries.insert(
            key,
            Entry {
                bytes,
                slot: Slot::Registered,
            },
        );
    }

    /// Makes a model known that is in memory already; it stays only registered when the budget does not hold it.
    pub(crate) fn register_resident(&mut self, key: ModelKey, bytes: u64, weights: W) {
        self.register(key, bytes);
        if let (Some(reservation), Some(entry)) = (self.budget.reserve(bytes), self.entries.get_mut(&key)) {
            entry.slot = Slot::resident(weights, reservation, Duration::ZERO);
        }
    }

    /// Forgets a variant. Leases keep their weights.
    pub(crate) fn forget(&mut self, key: ModelKey) {
        self.entries.remove(&key);
    }

    /// Whether requests for `key` can start.
    pub(crate) fn availability(&self, key: ModelKey) -> Availability {
        match self.entries.get(&key).map(|e| &e.slot) {
            Some(Slot::Resident { drains: None, .. }) => Availability::Ready,
            Some(&Slot::Resident {
                drains: Some(arrived_by),
                ..
            }) => Availability::ReadyFor { arrived_by },
            _ => Availability::Absent,
        }
    }

    /// Pins a resident variant for a request that starts.
    pub(crate) fn lease(&mut self, key: ModelKey, now: Duration) -> Option<Lease<W>> {
        match self.entries.get_mut(&key).map(|e| &mut e.slot) {
            Some(Slot::Resident { weights, last_used, .. }) => {
                *last_used = now;
                Some(weights.clone())
            }
            _ => None,
        }
    }

    /// Bytes of resident and loading variants (those on their way out included).
    pub(crate) fn bytes(&self) -> u64 {
        self.budget.used()
    }

    /// Loads that succeeded so far.
    pub(crate) fn loads(&self) -> u64 {
        self.loads
    }

    /// Evictions so far.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The loader has read a variant.
    pub(crate) fn loaded(&mut self, key: ModelKey, weights: W, now: Duration) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        match std::mem::replace(&mut entry.slot, Slot::Registered) {
            Slot::Loading { reservation } => {
                self.loads += 1;
                entry.slot = Slot::resident(weights, reservation, now);
            }
            other => entry.slot = other,
        }
    }

    /// The loader has refused a variant; it stays refused until it is registered again.
    pub(crate) fn refused(&mut self, key: ModelKey) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.slot = Slot::Refused;
        }
    }

    /// What to load next for the models that requests wait for (oldest request first), and what has to leave for it.
    /// At most one variant loads at a time.
    ///
    /// Idle variants leave first, the least recently used before others, but never one that an older request waits
    /// for. If that is not enough and the request is aged, the longest resident variants are drained: they start no
    /// newer requests, so that they become idle within the longest running completion. As long as an aged request
    /// waits for room, no later one may take it.
    pub(crate) fn next_load(&mut self, demand: &[Demand]) -> Moves {
        let mut moves = Moves::default();
        for entry in self.entries.values_mut() {
            if let Slot::Resident { drains, .. } = &mut entry.slot {
                *drains = None;
            }
        }
        if self.entries.values().any(|e| matches!(e.slot, Slot::Loading { .. })) {
            return moves;
        }
        for (rank, wanted) in demand.iter().enumerate() {
            let Some(entry) = self
                .entries
                .get(&wanted.model)
                .filter(|e| matches!(e.slot, Slot::Registered))
            else {
                continue;
            };
            let bytes = entry.bytes;
            if let Some(reservation) = self.make_room(bytes, &demand[..rank], &mut moves.evicted) {
                if let Some(entry) = self.entries.get_mut(&wanted.model) {
                    entry.slot = Slot::Loading { reservation };
                }
                moves.load = Some(wanted.model);
                return moves;
            }
            if wanted.aged {
                self.drain(bytes, wanted.arrived);
                return moves;
            }
        }
        moves
    }

    /// Reserves `bytes`, evicting idle variants, if they suffice.
    fn make_room(&mut self, bytes: u64, older: &[Demand], evicted: &mut Vec<ModelKey>) -> Option<Reservation> {
        if let Some(reservation) = self.budget.reserve(bytes) {
            return Some(reservation);
        }
        let mut idle: Vec<(Duration, ModelKey, u64)> = self
            .entries
            .iter()
            .filter(|(key, _)| older.iter().all(|d| d.model != **key))
            .filter_map(|(&key, entry)| match &entry.slot {
                Slot::Resident { weights, last_used, .. } if Arc::strong_count(weights) == 1 => {
                    Some((*last_used, key, entry.bytes))
                }
                _ => None,
            })
            .collect();
        let free = self.budget.total() - self.budget.used();
        if free + idle.iter().map(|i| i.2).sum::<u64>() < bytes {
            return None;
        }
        idle.sort_unstable();
        for (_, key, _) in idle {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.slot = Slot::Registered;
            }
            self.evictions += 1;
            evicted.push(key);
            if let Some(reservation) = self.budget.reserve(bytes) {
                return Some(reservation);
            }
        }
        None
    }

    /// Marks the longest resident variants until what they free is enough for `bytes`.
    fn drain(&mut self, bytes: u64, arrived: Duration) {
        let mut residents: Vec<(Duration, ModelKey)> = self
            .entries
            .iter()
            .filter_map(|(&key, entry)| match &entry.slot {
                Slot::Resident { since, .. } => Some((*since, key)),
                _ => None,
            })
            .collect();
        residents.sort_unstable();
        let mut free = self.budget.total() - self.budget.used();
        for (since, key) in residents {
            if free >= bytes {
                break;
            }
            if let Some(entry) = self.entries.get_mut(&key) {
                free += entry.bytes;
                if let Slot::Resident { drains, .. } = &mut entry.slot {
                    // What waited when the variant came in is its batch; what is older than the request goes first.
                    *drains = Some(since.max(arrived));
                }
            }
        }
    }
}
