//! Closed loop: a fixed number of requests in flight, each answer making room for the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Sent;
use crate::client::Client;
use crate::plan::PlannedRequest;

/// Sends the requests of `plan` with `concurrency` of them in flight and gives the replies in the order of the plan.
/// A request is due when the answer before it has come. `on_done` is called as replies come.
pub async fn closed_loop(
    client: &Client,
    plan: &Arc<Vec<PlannedRequest>>,
    concurrency: u32,
    mut on_done: impl FnMut(&Sent),
) -> Vec<Sent> {
    let (tx, mut rx) = mpsc::unbounded_channel();
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..(concurrency as usize).min(plan.len()) {
        let (client, plan, next, tx) = (client.clone(), plan.clone(), next.clone(), tx.clone());
        workers.spawn(async move {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(planned) = plan.get(i) else { return };
                let t_sched_ns = client.clock().ns();
                let reply = client.send(planned).await;
                let _ = tx.send(Sent {
                    request: i as u32,
                    t_sched_ns,
                    reply,
                });
            }
        });
    }
    drop(tx);
    let mut all = Vec::with_capacity(plan.len());
    while let Some(sent) = rx.recv().await {
        on_done(&sent);
        all.push(sent);
    }
    all.sort_by_key(|sent| sent.request);
    all
}
