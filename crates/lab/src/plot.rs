//! HTML reports in single files: text, tables, and plots as SVG, without external resources.

pub(crate) mod ruler;

use ruler::Ruler;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
const MARGIN: f64 = 56.0;
/// Left margin, which holds the labels of the vertical axis.
const MARGIN_LEFT: f64 = 104.0;
/// Colours of the first series, for the light and the dark mode.
const COLOURS: [(&str, &str); 8] = [
    ("#0b7285", "#3bc9db"),
    ("#d9480f", "#ff922b"),
    ("#5f3dc4", "#b197fc"),
    ("#2b8a3e", "#69db7c"),
    ("#c2255c", "#f783ac"),
    ("#1864ab", "#4dabf7"),
    ("#8a6d00", "#ffd43b"),
    ("#5c636a", "#ced4da"),
];
/// Points of a series beyond which its circles are small, as of a distribution.
const DENSE: usize = 30;
/// Angle in degrees between the hues of later series, so that no two series have the same colour.
const GOLDEN_ANGLE: f64 = 137.508;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#212529;--paper:#fff;--rule:#dee2e6;--late:38%LIGHT}\n\
@media (prefers-color-scheme:dark){:root{--ink:#e9ecef;--paper:#16181b;--rule:#3b4045;--late:68%DARK}}\n\
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:var(--ink);\
background:var(--paper);overflow-wrap:anywhere}\n\
h1{font-size:1.6rem}figure{margin:1rem 0}svg{display:block;width:100%;height:auto}svg text{fill:var(--ink);font-size:13px}\n\
.grid{stroke:var(--rule)}.series{fill:none;stroke-width:1.6;vector-effect:non-scaling-stroke}\n\
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}\
td,th{padding:.2rem .5rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}\
th{white-space:normal;overflow-wrap:normal;vertical-align:bottom}td:first-child,th:first-child{text-align:left}\n\
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;list-style:none;margin:.3rem 0;padding:0}\
.legend i{display:inline-block;width:.8em;height:.8em;border-radius:50%;margin-right:.4em}\n\
@media (max-width:40rem){svg text{font-size:24px}.odd{display:none}h1{font-size:1.3rem}}\n";

/// Wraps `body` into a whole page. The page follows the reader's light or dark mode, and fits a
/// phone.
#[must_use]
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{}</title>\n<style>\n{}</style>\n{body}</html>\n",
        escaped(title),
        style()
    )
}

/// The style with the colours of the first series.
fn style() -> String {
    let colours = |of: fn(&(&'static str, &'static str)) -> &'static str| -> String {
        COLOURS.iter().enumerate().map(|(index, pair)| format!(";--s{index}:{}", of(pair))).collect()
    };
    STYLE.replace("LIGHT", &colours(|pair| pair.0)).replace("DARK", &colours(|pair| pair.1))
}

/// The colour of a series, different for each index.
fn colour(index: usize) -> String {
    match index.checked_sub(COLOURS.len()) {
        None => format!("var(--s{index})"),
        Some(later) => format!("hsl({:.0} 70% var(--late))", (later as f64 * GOLDEN_ANGLE + 300.0) % 360.0),
    }
}

/// Escapes text for HTML.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// An HTML table of text; cells are escaped.
#[must_use]
pub fn table<S: AsRef<str>>(header: &[&str], rows: impl IntoIterator<Item = Vec<S>>) -> String {
    let row = |cells: &mut dyn Iterator<Item = &str>, tag: &str| {
        let cells: String = cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let mut out = String::from("<div class=\"scroll\"><table>") + &row(&mut header.iter().copied(), "th");
    for cells in rows {
        out += &row(&mut cells.iter().map(AsRef::as_ref), "td");
    }
    out + "</table></div>\n"
}

/// Scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Linear.
    Linear,
    /// Logarithmic, with ticks at powers of ten, or at 1, 2 and 5 in a short range; values that are not
    /// positive are not shown.
    Log,
}

/// An axis with its label and scale.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    /// Name and unit.
    pub label: &'a str,
    /// Scale of the values.
    pub scale: Scale,
}

/// Points of one colour, connected by rising x.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points as x, y and tooltip.
    pub points: Vec<(f64, f64, String)>,
}

/// An SVG plot of `series` with a legend below; empty if no point can be shown.
#[must_use]
pub fn plot(title: &str, x_axis: Axis<'_>, y_axis: Axis<'_>, series: &[Series]) -> String {
    draw(title, x_axis, y_axis, series).map_or_else(String::new, |drawn| drawn.figure())
}

/// A plot, to be put into a page or a file.
#[derive(Clone, Debug)]
pub struct Drawn {
    title: String,
    /// Elements of SVG.
    marks: String,
    /// Names of the series.
    names: Vec<String>,
}

impl Drawn {
    /// An element of a page, with a legend below.
    #[must_use]
    pub fn figure(&self) -> String {
        let mut legend = String::new();
        for (index, name) in self.names.iter().enumerate() {
            let _ = writeln!(legend, "<li><i style=\"background:{}\"></i>{}</li>", colour(index), escaped(name));
        }
        format!(
            "<figure><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n\
             <ul class=\"legend\">\n{legend}</ul></figure>\n",
            escaped(&self.title),
            self.marks
        )
    }
}

/// Height of a line of a legend.
const LEGEND_LINE: f64 = 22.0;
/// Width of a character of a legend, about.
const LEGEND_CHARACTER: f64 = 7.5;

/// An SVG file of plots, one below the other, with a legend at the end. All have the series of the first.
/// It follows the reader's light or dark mode.
#[must_use]
pub fn picture<'a>(plots: impl IntoIterator<Item = &'a Drawn>) -> String {
    let plots: Vec<&Drawn> = plots.into_iter().collect();
    let names = plots.first().map_or(&[][..], |drawn| &drawn.names);
    let below = plots.len() as f64 * HEIGHT;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\">\n\
         <style>\n{}text{{font-family:system-ui,sans-serif}}</style>\n\
         <rect width=\"100%\" height=\"100%\" style=\"fill:var(--paper)\"/>\n",
        below + 1.5 * LEGEND_LINE,
        escaped(&plots.iter().map(|drawn| drawn.title.as_str()).collect::<Vec<_>>().join(", ")),
        style()
    );
    for (index, drawn) in plots.iter().enumerate() {
        let _ = writeln!(out, "<g transform=\"translate(0 {})\">\n{}</g>", index as f64 * HEIGHT, drawn.marks);
    }
    let mut x = MARGIN_LEFT;
    for (index, name) in names.iter().enumerate() {
        let _ = writeln!(
            out,
            "<circle cx=\"{x:.0}\" cy=\"{:.0}\" r=\"5\" style=\"fill:{}\"/><text x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            below + 0.8 * LEGEND_LINE - 4.5,
            colour(index),
            x + 10.0,
            below + 0.8 * LEGEND_LINE,
            escaped(name)
        );
        x += 34.0 + LEGEND_CHARACTER * name.chars().count() as f64;
    }
    out + "</svg>\n"
}

/// Draws `series`; `None` if no point can be shown.
#[must_use]
pub fn draw(title: &str, x_axis: Axis<'_>, y_axis: Axis<'_>, series: &[Series]) -> Option<Drawn> {
    let fits = |scale: Scale, value: f64| value.is_finite() && (scale == Scale::Linear || value > 0.0);
    let shows = |&&(x, y, _): &&(f64, f64, String)| fits(x_axis.scale, x) && fits(y_axis.scale, y);
    let all = || series.iter().flat_map(|series| series.points.iter().filter(shows));
    all().next()?;
    let x_ruler = Ruler::new(x_axis.scale, all().map(|point| point.0).collect::<Vec<_>>().into_iter(), ruler::WIDE);
    let y_ruler = Ruler::new(y_axis.scale, all().map(|point| point.1).collect::<Vec<_>>().into_iter(), ruler::WIDE);
    let x = |part: f64| MARGIN_LEFT + part * (WIDTH - MARGIN_LEFT - MARGIN);
    let y = |part: f64| HEIGHT - MARGIN - part * (HEIGHT - 2.0 * MARGIN);
    let mut out = String::new();
    // On a phone, text is larger, so every other label of the horizontal axis is hidden.
    let mut line = |from: (f64, f64), to: (f64, f64), label: &str, at: (f64, f64), text: &str| {
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             {text}>{label}</text>",
            from.0, from.1, to.0, to.1, at.0, at.1
        );
    };
    for (index, (tick, label)) in x_ruler.ticks.iter().enumerate() {
        let at = x(x_ruler.part_of_tick(*tick));
        let text = if index % 2 == 1 { "class=\"odd\" text-anchor=\"middle\"" } else { "text-anchor=\"middle\"" };
        line((at, MARGIN), (at, HEIGHT - MARGIN), label, (at, HEIGHT - MARGIN + 24.0), text);
    }
    for (tick, label) in &y_ruler.ticks {
        let at = y(y_ruler.part_of_tick(*tick));
        line((MARGIN_LEFT, at), (WIDTH - MARGIN, at), label, (MARGIN_LEFT - 8.0, at + 4.0), "text-anchor=\"end\"");
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><text x=\"8\" y=\"{:.1}\">{}</text>",
        WIDTH / 2.0,
        HEIGHT - 8.0,
        escaped(x_axis.label),
        MARGIN - 24.0,
        escaped(y_axis.label)
    );
    for (index, one) in series.iter().enumerate() {
        let colour = colour(index);
        let mut points: Vec<&(f64, f64, String)> = one.points.iter().filter(shows).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let place = |point: &(f64, f64, String)| (x(x_ruler.part(point.0)), y(y_ruler.part(point.1)));
        let path: Vec<String> =
            points.iter().map(|point| place(point)).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(out, "<polyline class=\"series\" points=\"{}\" style=\"stroke:{colour}\"/>", path.join(" "));
        let radius = if points.len() > DENSE { 2 } else { 4 };
        for point in &points {
            let (x, y) = place(point);
            let _ = writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" style=\"fill:{colour}\"><title>{}</title></circle>",
                escaped(&point.2)
            );
        }
    }
    let names = series.iter().map(|one| one.name.clone()).collect();
    Some(Drawn { title: title.to_owned(), marks: out, names })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const LINEAR: Axis<'_> = Axis { label: "x", scale: Scale::Linear };

    fn series(points: &[(f64, f64)]) -> Series {
        Series { name: "a<b".to_owned(), points: points.iter().map(|&(x, y)| (x, y, format!("{x} & {y}"))).collect() }
    }

    #[test]
    fn points_lie_at_their_values() {
        let drawn = plot("t", LINEAR, LINEAR, &[series(&[(0.0, 0.0), (10.0, 5.0)])]);
        for place in ["cx=\"104.0\" cy=\"404.0\"", "cx=\"804.0\" cy=\"56.0\""] {
            assert!(drawn.contains(place), "{drawn}");
        }
        assert!(drawn.contains("a&lt;b") && drawn.contains("10 &amp; 5"));
    }

    #[test]
    fn points_that_cannot_be_shown_are_left_out() {
        let log = Axis { scale: Scale::Log, ..LINEAR };
        assert_eq!(plot("t", LINEAR, log, &[series(&[(1.0, 0.0), (f64::NAN, 1.0)])]), "");
        let drawn = plot("t", LINEAR, log, &[series(&[(1.0, 0.0), (1.0, 100.0)])]);
        assert_eq!(drawn.matches("<circle").count(), 1);
        for equal in [0.0, 7.0, -3.0, 1e9] {
            assert!(!plot("t", LINEAR, LINEAR, &[series(&[(equal, equal)])]).contains("NaN"));
        }
    }

    #[test]
    fn each_series_has_a_colour_of_its_own_and_a_name_below_the_plot() {
        let many: Vec<Series> =
            (0..30).map(|n| Series { name: format!("series {n}"), ..series(&[(f64::from(n), 1.0)]) }).collect();
        let drawn = plot("t", LINEAR, LINEAR, &many);
        let (svg, legend) = drawn.split_once("</svg>").expect("a legend after the plot");
        assert!(!svg.contains("series 7") && legend.contains("series 7"), "{drawn}");
        let colours: BTreeSet<String> = (0..many.len()).map(colour).collect();
        assert_eq!(colours.len(), many.len());
        for (index, colour) in (0..many.len()).map(|index| (index, colour(index))) {
            assert!(
                svg.contains(&format!("fill:{colour}\"")) && legend.contains(&format!("background:{colour}\"")),
                "{index}"
            );
        }
    }

    #[test]
    fn a_file_has_all_plots_and_one_legend() {
        let drawn = draw("t", LINEAR, LINEAR, &[series(&[(0.0, 0.0), (1.0, 1.0)])]).expect("points");
        let file = picture([&drawn, &drawn]);
        assert!(file.starts_with("<svg xmlns=") && file.ends_with("</svg>\n"), "{file}");
        assert_eq!((file.matches("<g ").count(), file.matches("a&lt;b").count()), (2, 1), "{file}");
        assert!(file.contains("--s0:#0b7285") && file.contains("translate(0 460)"), "{file}");
        assert!(draw("t", LINEAR, LINEAR, &[]).is_none());
    }

    #[test]
    fn a_page_supports_dark_mode_and_phones() {
        let page = page("t", &plot("t", LINEAR, LINEAR, &[series(&[(0.0, 1.0)])]));
        for part in
            ["prefers-color-scheme:dark", "name=\"viewport\"", "max-width:40rem", "--s0:#0b7285", "--s7:#ced4da"]
        {
            assert!(page.contains(part), "{part}");
        }
        let (style, body) = page.split_once("</style>").expect("a style");
        assert!(!body.contains('#'), "colours that do not change with the mode:\n{body}");
        assert!(!style.contains("LIGHT") && !style.contains("DARK"), "{style}");
    }

    #[test]
    fn tables_are_escaped() {
        let told = "<div class=\"scroll\"><table><tr><th>a</th></tr>\n<tr><td>&lt;</td></tr>\n</table></div>\n";
        assert_eq!(table(&["a"], [vec!["<"]]), told);
        assert!(page("<", "x").starts_with("<!doctype html>\n") && page("<", "x").contains("<title>&lt;</title>"));
    }
}
