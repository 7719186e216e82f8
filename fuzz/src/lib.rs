//! What all fuzzers watch beside crashes: that no input takes more memory or processor time than
//! its target's bound.
//!
//! libFuzzer's own `-timeout` and `-rss_limit_mb` count the fuzzer, too; these count the run, and
//! a run that breaks them is kept like one that crashes.

pub use libfuzzer_sys;

#[global_allocator]
static HEAP: os::heap::Counting = os::heap::Counting;

/// Runs an input and panics if it held more than `megabytes` or took longer than `millis` of the
/// processor's time.
pub fn watch(run: fn(&[u8]), data: &[u8], megabytes: i64, millis: u64) {
    os::heap::begin();
    let (before, begin) = (os::heap::held(), os::proc::thread_cpu());
    run(data);
    let took = (os::proc::thread_cpu() - begin).as_millis();
    let held = (os::heap::most() - before) >> 20;
    let bytes = data.len();
    assert!(held < megabytes, "an input of {bytes} bytes held {held} MB of {megabytes}");
    assert!(took < millis, "an input of {bytes} bytes took {took} ms of {millis}");
}

/// A fuzz target whose runs are watched.
#[macro_export]
macro_rules! bounded {
    ($run:path, megabytes: $megabytes:literal, millis: $millis:literal) => {
        $crate::libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            $crate::watch($run, data, $megabytes, $millis)
        });
    };
}
