//! Quantities as text: few digits, and units as prices and links have them.

/// Bytes with a decimal unit, as prices and links have them.
pub fn bytes(bytes: f64) -> String {
    scaled(bytes, &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")], "B")
}

/// Seconds with the largest unit below them.
pub fn seconds(seconds: f64) -> String {
    scaled(seconds, &[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")], "s")
}

fn scaled(value: f64, units: &[(f64, &str)], least: &str) -> String {
    if !value.is_finite() {
        return "infinite".to_owned();
    }
    let (unit, name) = units.iter().find(|(unit, _)| value >= *unit).copied().unwrap_or((1.0, least));
    format!("{} {name}", number(value / unit))
}

/// At most four digits.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        value if value >= 1000.0 || value.fract() == 0.0 => 0,
        value if value >= 100.0 => 1,
        value if value >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// Whole dollars, in groups of three digits.
pub fn dollars(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if value < 0.0 && digits != "0" { format!("-{grouped}") } else { grouped }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units_and_few_digits() {
        assert_eq!(
            (bytes(5120.0), bytes(264.0), bytes(202.76e9)),
            ("5.120 kB".into(), "264 B".into(), "202.8 GB".into())
        );
        assert_eq!((seconds(56.25e-6), seconds(0.0), seconds(2.0)), ("56.25 µs".into(), "0 s".into(), "2 s".into()));
        assert_eq!((bytes(f64::INFINITY), number(12.0), number(0.5)), ("infinite".into(), "12".into(), "0.500".into()));
    }

    #[test]
    fn dollars_are_grouped() {
        let texts = [0.4, -0.4, 999.0, -3820.0, 192_000.0, 1_234_567.0].map(dollars);
        assert_eq!(texts, ["0", "0", "999", "-3,820", "192,000", "1,234,567"]);
    }
}
