//! Range and ticks of an axis.

use super::Scale;

/// Range and ticks of an axis.
pub(crate) struct Ruler {
    scale: Scale,
    low: f64,
    high: f64,
    /// Positions on the scale (logarithms on a logarithmic one), and labels.
    pub ticks: Vec<(f64, String)>,
}

/// Most over least value below which a logarithmic axis has ticks at 1, 2 and 5.
const SHORT: f64 = 30.0;
/// Steps of a linear axis of a wide plot, at most.
pub(crate) const WIDE: usize = 8;

/// A tick's label; many digits would not fit beside the axis.
fn label(value: f64, digits: usize) -> String {
    if value.abs() >= 10_000.0 && value % 1_000.0 == 0.0 {
        return format!("{}k", value / 1_000.0);
    }
    format!("{value:.digits$}")
}

/// A power of ten: plain digits near 1, else an exponent.
fn power_label(power: i64) -> String {
    match power {
        -3..=6 => label(10_f64.powi(power as i32), (-power).max(0) as usize),
        _ => format!("1e{power}"),
    }
}

impl Ruler {
    /// An axis of at most `steps` steps, if it is linear.
    pub fn new(scale: Scale, values: impl Iterator<Item = f64> + Clone, steps: usize) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        match scale {
            Scale::Log => Self::logarithmic(low, high),
            Scale::Linear => Self::linear(low, high, steps as f64),
        }
    }

    fn logarithmic(low: f64, high: f64) -> Self {
        let scale = Scale::Log;
        if high < SHORT * low {
            let decade = 10_f64.powf(low.log10().floor());
            let all: Vec<f64> = [1.0, 10.0, 100.0]
                .iter()
                .flat_map(|ten| [1.0, 2.0, 5.0].map(move |part| part * ten * decade))
                .collect();
            let first = all.iter().rposition(|tick| *tick <= low).unwrap_or(0);
            let last = all.iter().position(|tick| *tick >= high).unwrap_or(all.len() - 1).max(first + 1);
            let digits = (-decade.log10()).max(0.0).round() as usize;
            let ticks = all[first..=last].iter().map(|value| (value.log10(), label(*value, digits))).collect();
            return Self { scale, low: all[first].log10(), high: all[last].log10(), ticks };
        }
        let (low, high) = (low.log10().floor(), high.log10().ceil());
        let high = high.max(low + 1.0);
        let ticks = (low as i64..=high as i64).map(|power| (power as f64, power_label(power))).collect();
        Self { scale, low, high, ticks }
    }

    fn linear(low: f64, high: f64, steps: f64) -> Self {
        let span = if high > low { high - low } else { high.abs().max(1.0) };
        let decade = 10_f64.powf((span / steps).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|part| part * decade).into_iter().find(|step| span / step <= steps);
        let step = step.unwrap_or(10.0 * decade);
        let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
        let last = last.max(first + 1);
        let digits = (-step.log10().floor()).max(0.0) as usize;
        let tick = |index: i64| (index as f64 * step, label(index as f64 * step, digits));
        let ticks = (first..=last).map(tick).collect();
        Self { scale: Scale::Linear, low: first as f64 * step, high: last as f64 * step, ticks }
    }

    /// An axis from the least to the greatest value with a tick at each. Rising values only.
    pub fn at(scale: Scale, values: &[f64], text: impl Fn(f64) -> String) -> Self {
        let place = |value: f64| if scale == Scale::Log { value.log10() } else { value };
        let (low, high) = (place(values[0]), place(values[values.len() - 1]));
        let high = if high > low { high } else { low + 1.0 };
        Self { scale, low, high, ticks: values.iter().map(|&value| (place(value), text(value))).collect() }
    }

    /// Position of a value on the axis, 0 to 1 within its range.
    pub fn part(&self, value: f64) -> f64 {
        let value = if self.scale == Scale::Log { value.log10() } else { value };
        self.part_of_tick(value)
    }

    /// The same of a tick's position.
    pub fn part_of_tick(&self, at: f64) -> f64 {
        (at - self.low) / (self.high - self.low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_fit_beside_the_axis() {
        let told = |scale: Scale, values: [f64; 2]| {
            let ruler = Ruler::new(scale, values.into_iter(), WIDE);
            ruler.ticks.into_iter().map(|tick| tick.1).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(told(Scale::Linear, [0.0, 230_000.0]), "0 50k 100k 150k 200k 250k");
        assert_eq!(told(Scale::Linear, [0.0, 1.0]), "0.0 0.2 0.4 0.6 0.8 1.0");
        assert_eq!(told(Scale::Log, [130.0, 170.0]), "100 200");
        assert_eq!(told(Scale::Log, [0.06, 0.3]), "0.05 0.10 0.20 0.50");
        assert_eq!(told(Scale::Log, [900.0, 26_000.0]), "500 1000 2000 5000 10k 20k 50k");
        assert_eq!(told(Scale::Log, [7.0, 7.0]), "5 10");
        assert_eq!(told(Scale::Log, [3.0, 4_000.0]), "1 10 100 1000 10k");
        assert_eq!(told(Scale::Log, [1e-5, 1.0]), "1e-5 1e-4 0.001 0.01 0.1 1");
        for value in [1e-9, 1e-3, 1.0, 10.0, 1e3, 1e6] {
            let ruler = Ruler::new(Scale::Log, [value, value].into_iter(), WIDE);
            assert!((0.0..=1.0).contains(&ruler.part(value)), "{value}");
        }
    }

    #[test]
    fn an_axis_may_have_its_ticks_at_the_values() {
        let ruler = Ruler::at(Scale::Log, &[1.0, 4.0, 16.0], |value| value.to_string());
        let parts: Vec<f64> = ruler.ticks.iter().map(|(at, _)| ruler.part_of_tick(*at)).collect();
        assert_eq!((parts[0], parts[2]), (0.0, 1.0));
        assert!((parts[1] - 0.5).abs() < 1e-12 && (ruler.part(4.0) - 0.5).abs() < 1e-12);
        assert_eq!(ruler.ticks[1].1, "4");
    }
}
