//! Tasks, all on one thread.

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
