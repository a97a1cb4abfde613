//! The step thread: takes commands, plans, computes, sends tokens. It waits for nothing but commands, and for those
//! only when there is nothing to compute.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use deltamux_model::ForwardError;

use crate::executor::{Executor, Work};
use crate::loader::Weights;
use crate::registry::{BASE, Entry};
use crate::request::{Event, Mode, SubmitError, VariantState};
use crate::residency::Residency;
use crate::scheduler::{Availability, ModelKey, Plan, Scheduler, SequenceId};
use crate::sequence::{Sequence, Submission};
use crate::shared::Shared;
use crate::sync::lock;

/// How often the requests that wait for a load are looked through for clients that have gone.
const CANCELLATION_POLL: Duration = Duration::from_millis(20);

/// What the step thread is told.
pub(crate) enum Command {
    /// A request.
    Submit(Box<Submission>),
    /// A model that can be asked for from now on.
    Register(Arc<Entry>),
    /// A generation that nobody can ask for any more; what was asked before is still answered.
    Retire(ModelKey),
    /// The loader's answer.
    Loaded {
        /// Which.
        key: ModelKey,
        /// The weights, or why they are refused.
        result: Result<Weights, String>,
    },
    /// Stop after at most this time.
    Shutdown {
        /// For running requests.
        grace: Duration,
    },
}

/// The step thread's state.
pub(crate) struct Core {
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    loads: Sender<Arc<Entry>>,
    executor: Executor,
    scheduler: Scheduler,
    residency: Residency<Weights>,
    entries: HashMap<ModelKey, Arc<Entry>>,
    retired: HashSet<ModelKey>,
    sequences: BTreeMap<SequenceId, Sequence>,
    next_id: u64,
    epoch: Instant,
    /// Set when stopping: what still runs then is failed.
    deadline: Option<Instant>,
}

impl Core {
    /// A core with nothing registered (delta mode: with the base in the executor).
    pub(crate) fn new(
        shared: Arc<Shared>,
        commands: Receiver<Command>,
        loads: Sender<Arc<Entry>>,
        executor: Executor,
        scheduler: Scheduler,
        residency: Residency<Weights>,
    ) -> Self {
        Self {
            shared,
            commands,
            loads,
            executor,
            scheduler,
            residency,
            entries: HashMap::new(),
            retired: HashSet::new(),
            sequences: BTreeMap::new(),
            next_id: 0,
            epoch: Instant::now(),
            deadline: None,
        }
    }

    /// Steps until it is told to stop.
    pub(crate) fn run(&mut self) {
        let mut busy = false;
        loop {
            self.take_commands(busy);
            self.drop_cancelled();
            if self.is_over() {
                break;
            }
            let now = self.epoch.elapsed();
            let (mode, residency) = (self.shared.mode, &self.residency);
            let plan = self.scheduler.plan(now, |key| match mode {
                Mode::Delta if key == BASE => Availability::Ready,
                _ => residency.availability(key),
            });
            self.start_admitted(&plan, now);
            lock(&self.shared.stats).preemptions += plan.preempted.len() as u64;
            self.request_load(now);
            busy = !plan.chunks.is_empty();
            self.step(plan);
            self.publish();
        }
        self.fail_all(&SubmitError::ShuttingDown);
        self.publish();
    }

    /// Ends every request with an error, those still in the channel too.
    pub(crate) fn fail_all(&mut self, why: &SubmitError) {
        for id in self.sequences.keys().copied().collect::<Vec<_>>() {
            self.fail(id, why.clone());
        }
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Submit(submission) = command {
                self.shared.leave_queue();
                let _ = submission.events.send(Event::Failed(why.clone()));
            }
        }
    }

    fn take_commands(&mut self, busy: bool) {
        if !busy {
            let timeout = match self.deadline {
                Some(_) => Duration::from_millis(1),
                None if self.sequences.is_empty() => Duration::MAX,
                None => CANCELLATION_POLL,
            };
            let command = if timeout == Duration::MAX {
                self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                self.commands.recv_timeout(timeout)
            };
            match command {
                Ok(command) => self.handle(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.stop(Duration::ZERO),
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.handle(command);
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.submit(*submission),
            Command::Register(entry) => {
                // The base is in memory from the start.
                if entry.key != BASE {
                    self.residency.register(entry.key, entry.bytes);
                }
                self.entries.insert(entry.key, entry);
            }
            Command::Retire(key) => {
                self.retired.insert(key);
                self.forget_if_retired(key);
            }
            Command::Loaded { key, result } => self.loaded(key, result),
            Command::Shutdown { grace } => self.stop(grace),
        }
    }

    fn submit(&mut self, submission: Submission) {
        let key = submission.entry.key;
        if self.deadline.is_some() {
            self.shared.leave_queue();
            let _ = submission.events.send(Event::Failed(SubmitError::ShuttingDown));
            return;
        }
        let sequence = Sequence::new(submission);
        // Refused while the request was on its way, or retired and forgotten.
        let state = lock(&sequence.entry.state).clone();
        if let VariantState::Refused { why } = state {
            self.shared.leave_queue();
            let name = sequence.entry.name.clone();
            return sequence.fail(SubmitError::VariantRefused { name, why });
        }
        if !self.entries.contains_key(&key) {
            self.shared.leave_queue();
            return sequence.fail(SubmitError::UnknownModel(sequence.entry.name.clone()));
        }
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.scheduler.add(id, key, sequence.tokens.len(), self.epoch.elapsed());
        self.sequences.insert(id, sequence);
    }

    fn loaded(&mut self, key: ModelKey, result: Result<Weights, String>) {
        let Some(entry) = self.entries.get(&key).cloned() else {
            return;
        };
        match result {
            Ok(weights) => {
                self.residency.loaded(key, weights, self.epoch.elapsed());
                entry.set_state(VariantState::Resident);
            }
            Err(why) => {
                tracing::warn!("variant `{}` is refused: {why}", entry.name);
                self.residency.refused(key);
                entry.set_state(VariantState::Refused { why: why.clone() });
                let waiting: Vec<SequenceId> = self
                    .sequences
                    .iter()
                    .filter(|(_, s)| s.entry.key == key)
                    .map(|(&id, _)| id)
                    .collect();
                for id in waiting {
                    let name = entry.name.clone();
                    self.fail(id, SubmitError::VariantRefused { name, why: why.clone() });
                }
            }
        }
    }

    fn stop(&mut self, grace: Duration) {
        let now = Instant::now();
        let deadline = now.checked_add(grace).unwrap_or(now + Duration::from_secs(86_400));
        self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
        let waiting: Vec<SequenceId> = self
            .sequences
            .iter()
            .filter(|(_, s)| !s.has_started())
            .map(|(&id, _)| id)
            .collect();
        for id in waiting {
            self.fail(id, SubmitError::ShuttingDown);
        }
    }

    fn is_over(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| self.sequences.is_empty() || Instant::now() >= deadline)
    }

    fn drop_cancelled(&mut self) {
        let gone: Vec<SequenceId> = self
            .sequences
            .iter()
            .filter(|(_, s)| s.is_cancelled())
            .map(|(&id, _)| id)
            .collect();
        for id in gone {
            self.remove(id);
            lock(&self.shared.stats).cancelled += 1;
        }
    }

    fn start_admitted(&mut self, plan: &Plan, now: Duration) {
        for id in &plan.admitted {
            let Some(sequence) = self.sequences.get_mut(id) else {
                continue;
            };
            if !sequence.has_started() {
                let lease = self.residency.lease(sequence.entry.key, now);
                sequence.start(Instant::now(), lease);
                self.shared.leave_queue();
            }
        }
    }

    fn request_load(&mut self, now: Duration) {
        let moves = self.residency.next_load(&self.scheduler.demand(now));
        for key in moves.evicted {
            if let Some(entry) = self.entries.get(&key) {
                entry.set_state(VariantState::Registered);
            }
        }
        if let Some(entry) = moves.load.and_then(|key| self.entries.get(&key)).cloned() {
            entry.set_state(VariantState::Loading);
            let key = entry.key;
            if self.loads.send(entry).is_err() {
                self.loaded(key, Err("the loader thread has stopped".to_owned()));
            }
        }
    }

    /// Computes the planned chunks and sends what they yield.
    fn step(&mut self, plan: Plan) {
        let mut chunks = plan.chunks;
        let rows = loop {
            if chunks.is_empty() {
                return;
            }
            let work: Vec<Work<'_>> = chunks
                .iter()
                .filter_map(|chunk| {
                    let sequence = self.sequences.get(&chunk.id)?;
                    Some(Work {
                        tokens: &sequence.tokens[chunk.start..chunk.start + chunk.len],
                        start: chunk.start,
                        pages: self.scheduler.pages(chunk.id),
                        weights: sequence.lease.as_ref(),
                        samples: chunk.samples,
                    })
                })
                .collect();
            assert_eq!(work.len(), chunks.len(), "every planned sequence is known");
            match self.executor.forward(&work) {
                Ok(rows) => break rows,
                Err(ForwardError::Batch { sequence, what }) => {
                    // Only the sequence that the model cannot take is failed; the others go on.
                    let chunk = chunks.remove(sequence.min(chunks.len() - 1));
                    tracing::error!("request {} cannot be computed: {what}", chunk.id.0);
                    self.fail(chunk.id, SubmitError::Internal(what));
                }
            }
        };
        let mut rows = rows.into_iter();
        let (mut prompt_tokens, mut generated, mut finished) = (0, 0, 0);
        for chunk in chunks {
            self.scheduler.computed(chunk.id, chunk.len);
            let Some(sequence) = self.sequences.get_mut(&chunk.id) else {
                continue;
            };
            let of_prompt = sequence
                .prompt_tokens()
                .min(chunk.start + chunk.len)
                .saturating_sub(chunk.start);
            prompt_tokens += of_prompt as u64;
            if !chunk.samples {
                continue;
            }
            let logits = rows.next();
            assert!(
                logits.is_some(),
                "the backend returns a row for every chunk that samples"
            );
            match sequence.advance(&logits.unwrap_or_default()) {
                Ok(false) => self.scheduler.push_token(chunk.id),
                Ok(true) => {
                    self.remove(chunk.id);
                    finished += 1;
                }
                Err(why) => {
                    self.fail(chunk.id, why);
                    continue;
                }
            }
            generated += 1;
        }
        let mut stats = lock(&self.shared.stats);
        stats.steps += 1;
        stats.prompt_tokens += prompt_tokens;
        stats.generation_tokens += generated;
        stats.finished += finished;
    }

    fn fail(&mut self, id: SequenceId, why: SubmitError) {
        if let Some(sequence) = self.remove(id) {
            sequence.fail(why);
        }
    }

    /// Takes a request out, whatever its state: pages and lease are given back.
    fn remove(&mut self, id: SequenceId) -> Option<Sequence> {
        let sequence = self.sequences.remove(&id)?;
        self.scheduler.remove(id);
        if !sequence.has_started() {
            self.shared.leave_queue();
        }
        self.forget_if_retired(sequence.entry.key);
        Some(sequence)
    }

    fn forget_if_retired(&mut self, key: ModelKey) {
        if self.retired.contains(&key) && self.sequences.values().all(|s| s.entry.key != key) {
            self.retired.remove(&key);
            self.residency.forget(key);
            self.entries.remove(&key);
        }
    }

    fn publish(&self) {
        let mut stats = lock(&self.shared.stats);
        stats.running = self.scheduler.running();
        stats.waiting = self.scheduler.waiting();
        stats.kv_pages_used = self.scheduler.pages_used();
        stats.variant_bytes = self.residency.bytes();
        stats.variant_loads = self.residency.loads();
        stats.variant_evictions = self.residency.evictions();
    }
}
