//! Numbers as people read them.

/// `12,345`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

/// Bytes in powers of 1,000 with one decimal: `987B`, `1.2kB`, `268.4MB`.
pub fn bytes(n: u64) -> String {
    let (unit, name) = match n {
        0..1_000 => return format!("{n}B"),
        1_000..1_000_000 => (1_000, "kB"),
        1_000_000..1_000_000_000 => (1_000_000, "MB"),
        1_000_000_000..1_000_000_000_000 => (1_000_000_000, "GB"),
        _ => (1_000_000_000_000, "TB"),
    };
    format!("{}.{}{name}", n / unit, n % unit * 10 / unit)
}

/// Memory in the powers of 1,024 that configurations use: `64MiB`, `2.9MiB`.
pub fn memory(n: u64) -> String {
    const MIB: u64 = 1 << 20;
    if n.is_multiple_of(MIB) {
        format!("{}MiB", n / MIB)
    } else {
        format!("{}.{}MiB", n / MIB, n % MIB * 10 / MIB)
    }
}

/// A length of time: `5ms`, `59s`, `1m01s`, `3h12m`, `1d01h`.
pub fn span(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0 => format!("{ms}ms"),
        1..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
    }
}

/// A length of time as a log tells it: `0.4ms`, `612ms`, `1.2s`, then as [`span`].
pub fn lasting(time: units::Duration) -> String {
    let (us, ms) = (time.as_micros(), time.as_millis());
    match ms {
        0..10 => format!("{}.{}ms", us / 1000, us % 1000 / 100),
        10..1_000 => format!("{ms}ms"),
        1_000..10_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        _ => span(ms),
    }
}

/// The system's words without the "(os error 13)" that helps nobody.
pub fn reason(e: &std::io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or("").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_cut_where_people_cut_them() {
        let grouped = [0, 999, 1_000, 1_234_567].map(grouped);
        assert_eq!(grouped, ["0", "999", "1,000", "1,234,567"]);
        let bytes = [999, 1_250, 1_000_000, u64::MAX].map(bytes);
        assert_eq!(bytes, ["999B", "1.2kB", "1.0MB", "18446744.0TB"]);
        assert_eq!([memory(64 << 20), memory(3_100_000)], ["64MiB", "2.9MiB"]);
    }

    #[test]
    fn lengths_of_time_have_as_many_digits_as_help() {
        let lasting = [412, 9_950, 612_345, 1_250_000, 59_999_999, 3_700_000_000]
            .map(|us| lasting(units::Duration::from_micros(us)));
        assert_eq!(lasting, ["0.4ms", "9.9ms", "612ms", "1.2s", "59s", "1h01m"]);
    }

    #[test]
    fn times_read_as_people_say_them() {
        let spans = [5, 59_000, 61_000, 11_520_000, 90_000_000].map(span);
        assert_eq!(spans, ["5ms", "59s", "1m01s", "3h12m", "1d01h"]);
    }
}
