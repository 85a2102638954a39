//! Reports as one HTML file each: text, tables, and plots as SVG, so that nothing is loaded from anywhere.

use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
const MARGIN: f64 = 56.0;
const COLOURS: [&str; 7] = ["#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e", "#c2255c", "#868e96", "#1864ab"];

/// A whole page around this body.
#[must_use]
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{}</title>\n<style>body{{font:15px/1.5 \
         system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#212529}}table{{border-collapse:collapse;\
         width:100%}}td,th{{padding:.2rem .5rem;text-align:right;border-bottom:1px solid #dee2e6}}td:first-child,\
         th:first-child{{text-align:left}}svg{{width:100%;height:auto}}</style>\n{body}</html>\n",
        escaped(title)
    )
}

/// Text as HTML.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// A table of text.
#[must_use]
pub fn table<S: AsRef<str>>(header: &[&str], rows: impl IntoIterator<Item = Vec<S>>) -> String {
    let row = |cells: &mut dyn Iterator<Item = &str>, tag: &str| {
        let cells: String = cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let mut out = String::from("<table>") + &row(&mut header.iter().copied(), "th");
    for cells in rows {
        out += &row(&mut cells.iter().map(AsRef::as_ref), "td");
    }
    out + "</table>\n"
}

/// How an axis goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By powers of ten; what is not positive is not shown.
    Log,
}

/// An axis: what it says, and how it goes.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    /// Name and unit.
    pub label: &'a str,
    /// How it goes.
    pub scale: Scale,
}

/// Points of one colour, joined in the order of their x.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// What the colour means.
    pub name: String,
    /// x, y, and what is told where the pointer rests.
    pub points: Vec<(f64, f64, String)>,
}

/// Where an axis' values come to lie, and its lines.
struct Ruler {
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<(f64, String)>,
}

impl Ruler {
    fn new(scale: Scale, values: impl Iterator<Item = f64> + Clone) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        match scale {
            Scale::Log => {
                let (low, high) = (low.log10().floor(), high.log10().ceil());
                let high = high.max(low + 1.0);
                let ticks = (low as i64..=high as i64).map(|power| (power as f64, format!("1e{power}"))).collect();
                Self { scale, low, high, ticks }
            }
            Scale::Linear => {
                let span = if high > low { high - low } else { high.abs().max(1.0) };
                let decade = 10_f64.powf((span / 8.0).log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|part| part * decade).into_iter().find(|step| span / step <= 8.0);
                let step = step.unwrap_or(10.0 * decade);
                let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
                let last = last.max(first + 1);
                let digits = (-step.log10().floor()).max(0.0) as usize;
                let tick = |index: i64| (index as f64 * step, format!("{:.digits$}", index as f64 * step));
                Self {
                    scale,
                    low: first as f64 * step,
                    high: last as f64 * step,
                    ticks: (first..=last).map(tick).collect(),
                }
            }
        }
    }

    /// From 0 to 1.
    fn part(&self, value: f64) -> f64 {
        let value = if self.scale == Scale::Log { value.log10() } else { value };
        self.part_of_tick(value)
    }

    fn part_of_tick(&self, at: f64) -> f64 {
        (at - self.low) / (self.high - self.low)
    }
}

/// A plot of these series; nothing where no point can be shown.
#[must_use]
pub fn plot(title: &str, x_axis: Axis<'_>, y_axis: Axis<'_>, series: &[Series]) -> String {
    let fits = |scale: Scale, value: f64| value.is_finite() && (scale == Scale::Linear || value > 0.0);
    let shows = |&&(x, y, _): &&(f64, f64, String)| fits(x_axis.scale, x) && fits(y_axis.scale, y);
    let all = || series.iter().flat_map(|series| series.points.iter().filter(shows));
    if all().next().is_none() {
        return String::new();
    }
    let x_ruler = Ruler::new(x_axis.scale, all().map(|point| point.0).collect::<Vec<_>>().into_iter());
    let y_ruler = Ruler::new(y_axis.scale, all().map(|point| point.1).collect::<Vec<_>>().into_iter());
    let x = |part: f64| MARGIN + part * (WIDTH - 2.0 * MARGIN);
    let y = |part: f64| HEIGHT - MARGIN - part * (HEIGHT - 2.0 * MARGIN);
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-size=\"12\" role=\"img\" aria-label=\"{}\">\n",
        escaped(title)
    );
    let mut line = |from: (f64, f64), to: (f64, f64), label: &str, at: (f64, f64), anchor: &str| {
        let _ = writeln!(
            out,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#dee2e6\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"{anchor}\">{label}</text>",
            from.0, from.1, to.0, to.1, at.0, at.1
        );
    };
    for (tick, label) in &x_ruler.ticks {
        let at = x(x_ruler.part_of_tick(*tick));
        line((at, MARGIN), (at, HEIGHT - MARGIN), label, (at, HEIGHT - MARGIN + 18.0), "middle");
    }
    for (tick, label) in &y_ruler.ticks {
        let at = y(y_ruler.part_of_tick(*tick));
        line((MARGIN, at), (WIDTH - MARGIN, at), label, (MARGIN - 8.0, at + 4.0), "end");
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><text x=\"{MARGIN}\" y=\"{:.1}\">{}</text>",
        WIDTH / 2.0,
        HEIGHT - 14.0,
        escaped(x_axis.label),
        MARGIN - 16.0,
        escaped(y_axis.label)
    );
    for (index, one) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mut points: Vec<&(f64, f64, String)> = one.points.iter().filter(shows).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let place = |point: &(f64, f64, String)| (x(x_ruler.part(point.0)), y(y_ruler.part(point.1)));
        let path: Vec<String> =
            points.iter().map(|point| place(point)).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(out, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>", path.join(" "));
        for point in &points {
            let (x, y) = place(point);
            let _ = writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"><title>{}</title></circle>",
                escaped(&point.2)
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\" text-anchor=\"end\">{}</text>",
            WIDTH - MARGIN,
            MARGIN + 16.0 * index as f64,
            escaped(&one.name)
        );
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINEAR: Axis<'_> = Axis { label: "x", scale: Scale::Linear };

    fn series(points: &[(f64, f64)]) -> Series {
        Series { name: "a<b".to_owned(), points: points.iter().map(|&(x, y)| (x, y, format!("{x} & {y}"))).collect() }
    }

    #[test]
    fn points_lie_where_their_values_are() {
        let drawn = plot("t", LINEAR, LINEAR, &[series(&[(0.0, 0.0), (10.0, 5.0)])]);
        for place in ["cx=\"56.0\" cy=\"404.0\"", "cx=\"804.0\" cy=\"56.0\""] {
            assert!(drawn.contains(place), "{drawn}");
        }
        assert!(drawn.contains("a&lt;b") && drawn.contains("10 &amp; 5"));
    }

    #[test]
    fn what_cannot_be_shown_is_left_out() {
        let log = Axis { scale: Scale::Log, ..LINEAR };
        assert_eq!(plot("t", LINEAR, log, &[series(&[(1.0, 0.0), (f64::NAN, 1.0)])]), "");
        let drawn = plot("t", LINEAR, log, &[series(&[(1.0, 0.0), (1.0, 100.0)])]);
        assert_eq!(drawn.matches("<circle").count(), 1);
        for equal in [0.0, 7.0, -3.0, 1e9] {
            assert!(!plot("t", LINEAR, LINEAR, &[series(&[(equal, equal)])]).contains("NaN"));
        }
    }

    #[test]
    fn tables_are_escaped() {
        assert_eq!(table(&["a"], [vec!["<"]]), "<table><tr><th>a</th></tr>\n<tr><td>&lt;</td></tr>\n</table>\n");
        assert!(page("<", "x").starts_with("<!doctype html>\n") && page("<", "x").contains("<title>&lt;</title>"));
    }
}
