//! Signals that ask a server to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;

/// Waits for SIGTERM or SIGINT. The first, once `ready` is set, resolves the receiver of `stop`; one before that, and
/// the second in any case, end the process with the code that shells expect (128 + signal): nothing is half-written
/// that a server could leave behind.
pub async fn watch(ready: Arc<AtomicBool>, stop: oneshot::Sender<()>) -> std::io::Result<()> {
    let mut signals = Signals::new()?;
    let code = signals.next().await;
    if !ready.load(Ordering::Acquire) {
        std::process::exit(code);
    }
    tracing::info!("draining; a second signal stops at once");
    // Nobody listens any more when the server has ended by itself.
    let _ = stop.send(());
    std::process::exit(signals.next().await);
}

#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The next signal's exit code.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.terminate.recv() => 128 + 15,
            _ = self.interrupt.recv() => 128 + 2,
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> i32 {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        128 + 2
    }
}
