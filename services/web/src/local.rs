//! Tasks, all on one thread.

use std::pin::pin;
use std::task::Poll;

/// What comes of `wanted`, unless the `end` comes before that.
pub async fn unless<T>(
    wanted: impl Future<Output = T>,
    end: impl Future<Output = ()>,
) -> Option<T> {
    let (mut wanted, mut end) = (pin!(wanted), pin!(end));
    std::future::poll_fn(|context| match wanted.as_mut().poll(context) {
        Poll::Ready(it) => Poll::Ready(Some(it)),
        Poll::Pending => end.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// What comes of the one that is ready first. The other is given up.
pub async fn sooner<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (pin!(one), pin!(other));
    std::future::poll_fn(|context| match one.as_mut().poll(context) {
        Poll::Pending => other.as_mut().poll(context),
        ready => ready,
    })
    .await
}

/// Runs hyper's tasks on this thread.
#[derive(Clone, Copy)]
pub struct Local;

impl Local {
    /// Runs a task beside all others.
    pub fn spawn(task: impl Future<Output = ()> + 'static) {
        tokio::task::spawn_local(task);
    }
}

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}
