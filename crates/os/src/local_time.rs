//! This host's time zone, for hours and days as people mean them.

unsafe extern "C" {
    fn tzset();
}

/// Seconds that the host's time is ahead of UTC (east of Greenwich) `at` so many seconds after
/// 1970, with summer time; 0 where that is not known.
pub fn ahead_of_utc(at: u64) -> i64 {
    let Ok(at) = libc::time_t::try_from(at) else { return 0 };
    // SAFETY: it reads the variable TZ, which nothing here changes, and where that is not set the
    // file of the host's zone, if that is another than before: localtime_r need not (POSIX).
    unsafe { tzset() };
    let mut parts = std::mem::MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both point to what lives here; where the call succeeds it has filled `parts`. It
    // reads the variable TZ, which nothing here changes.
    let filled = unsafe { libc::localtime_r(&at, parts.as_mut_ptr()) };
    if filled.is_null() {
        return 0;
    }
    // SAFETY: filled, as the result says.
    unsafe { parts.assume_init() }.tm_gmtoff
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// The time zone is a process' own: the test runs itself in several.
    #[test]
    fn zones_and_summer_time_are_followed() {
        const SHOW: &str = "BENTPIPE_SHOW_LOCAL_TIME";
        if let Ok(at) = std::env::var(SHOW) {
            println!("ahead {}", super::ahead_of_utc(at.parse().unwrap()));
            return;
        }
        let name = "local_time::tests::zones_and_summer_time_are_followed";
        for (zone, at, ahead) in [
            ("UTC", 1_790_000_000_u64, 0),
            ("XXX-5:30", 1_790_000_000, 19_800),
            // As the rule of central Europe: January and July of 2026.
            ("CET-1CEST,M3.5.0,M10.5.0/3", 1_768_000_000, 3_600),
            ("CET-1CEST,M3.5.0,M10.5.0/3", 1_783_000_000, 7_200),
            ("UTC", u64::MAX, 0),
        ] {
            let mut this = Command::new(std::env::current_exe().unwrap());
            this.args([name, "--exact", "--nocapture"]).env("TZ", zone).env(SHOW, at.to_string());
            let told = this.output().unwrap();
            let told = String::from_utf8_lossy(&told.stdout);
            assert!(told.contains(&format!("ahead {ahead}\n")), "{zone} {at}: {told}");
        }
    }
}
