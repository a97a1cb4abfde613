//! Open loop: every request is sent when it is due, whatever became of the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::{Semaphore, mpsc};

use super::Sent;
use crate::client::Client;
use crate::plan::PlannedRequest;

/// Between the call and the start of the schedule, so that the first request is not late.
const LEAD_NS: i64 = 20_000_000;

/// Sends every request of `plan` at its `due_s` and gives the replies in the order of the plan. With `max_in_flight`
/// the client itself holds requests back; they are then late by their schedule, which is measured like any lateness.
/// `on_done` is called as replies come.
///
/// A thread of its own keeps the schedule: tokio's timers have a granularity of a millisecond, a sleeping thread wakes
/// within some tens of microseconds and takes no processor meanwhile.
pub async fn open_loop(
    client: &Client,
    plan: &Arc<Vec<PlannedRequest>>,
    max_in_flight: Option<u32>,
    mut on_done: impl FnMut(&Sent),
) -> Vec<Sent> {
    let (tx, mut rx) = mpsc::unbounded_channel();
    let stop = StopOnDrop(Arc::new(AtomicBool::new(false)));
    let keeper = Keeper {
        client: client.clone(),
        plan: plan.clone(),
        start_ns: client.clock().ns() + LEAD_NS,
        permits: max_in_flight.map(|n| Arc::new(Semaphore::new(n as usize))),
        stop: stop.0.clone(),
        runtime: tokio::runtime::Handle::current(),
    };
    std::thread::spawn(move || keeper.keep(&tx));

    let mut all = Vec::with_capacity(plan.len());
    // Ends when the keeper and every request have dropped their sender.
    while let Some(sent) = rx.recv().await {
        on_done(&sent);
        all.push(sent);
    }
    all.sort_by_key(|sent| sent.request);
    all
}

/// Ends the keeper's thread when the caller gives up waiting.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Keeper {
    client: Client,
    plan: Arc<Vec<PlannedRequest>>,
    start_ns: i64,
    permits: Option<Arc<Semaphore>>,
    stop: Arc<AtomicBool>,
    runtime: tokio::runtime::Handle,
}

impl Keeper {
    fn keep(self, tx: &mpsc::UnboundedSender<Sent>) {
        for (i, planned) in self.plan.iter().enumerate() {
            let due_ns = (planned.due_s.unwrap_or(0.0) * 1e9).round() as i64;
            let t_sched_ns = self.start_ns.saturating_add(due_ns);
            sleep_until(self.client.clock().at(t_sched_ns));
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let (client, plan, permits, tx) =
                (self.client.clone(), self.plan.clone(), self.permits.clone(), tx.clone());
            self.runtime.spawn(async move {
                // The semaphore is never closed, and without a permit the request could only go earlier.
                let _permit = match &permits {
                    Some(permits) => permits.acquire().await.ok(),
                    None => None,
                };
                let reply = client.send(&plan[i]).await;
                let _ = tx.send(Sent {
                    request: i as u32,
                    t_sched_ns,
                    reply,
                });
            });
        }
    }
}

fn sleep_until(instant: Instant) {
    while let Some(left) = instant
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
    {
        std::thread::sleep(left);
    }
}
