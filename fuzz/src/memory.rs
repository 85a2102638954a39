//! Memory that an input takes, to find those that make the product take too much.

/// Runs work and asserts that the process never has more than `most` bytes in memory beside what it had
/// before. Linux counts them. Where it does not, nothing is asserted.
///
/// # Panics
/// The work took more.
pub fn within<T>(most: u64, work: impl FnOnce() -> T) -> T {
    // The mark of the most memory so far begins anew.
    let is_counted = std::fs::write("/proc/self/clear_refs", "5").is_ok();
    let before = kibibytes("VmRSS:");
    let value = work();
    if let (true, Some(before), Some(peak)) = (is_counted, before, kibibytes("VmHWM:")) {
        let taken = peak.saturating_sub(before) >> 10;
        assert!(taken <= most >> 20, "an input made the product take {taken} MiB; {} MiB are the most", most >> 20);
    }
    value
}

/// A number of the process's status.
fn kibibytes(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
