//! Line charts as SVG.
//!
//! A style sheet has colours for dark and light. Libraries such as plotters write colours as attributes,
//! which cannot depend on the scheme. The same input always gives the same bytes.

use std::fmt::Write as _;

/// Width of a chart in pixels: that of a page on GitHub.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 310.0;
/// Vertical range of the plots, from their top to their bottom.
const TOP: f64 = 76.0;
const BOTTOM: f64 = 250.0;
/// Space of the labels of the vertical axis, and of the values to the right of the last points.
const LEFT_MARGIN: f64 = 58.0;
const RIGHT_MARGIN: f64 = 56.0;
/// Minimum distance of the base lines of two values.
const LINE_HEIGHT: f64 = 15.0;
/// Maximum number of intervals of the vertical axis.
const MAX_INTERVALS: f64 = 5.0;

/// Colours by scheme. The background is part of the chart, because the scheme of the page may differ from
/// that of the browser.
const STYLE: &str = "\
svg{--back:#ffffff;--text:#1f2328;--faint:#59636e;--grid:#d1d9e0;--s0:#0969da;--s1:#bc4c00;--s2:#8250df}
@media(prefers-color-scheme:dark){svg{--back:#0d1117;--text:#f0f6fc;--faint:#9198a1;--grid:#3d444d;\
--s0:#4493f8;--s1:#f0883e;--s2:#ab7df8}}
text{font:13px system-ui,-apple-system,\"Segoe UI\",Helvetica,Arial,sans-serif;fill:var(--text)}
.title{font-size:16px;font-weight:600}
.axis{fill:var(--faint)}
.end{text-anchor:end}
.middle{text-anchor:middle}
.back{fill:var(--back)}
.grid{stroke:var(--grid)}
.line{fill:none;stroke-width:2.5}
.s0{stroke:var(--s0)}
.s1{stroke:var(--s1)}
.s2{stroke:var(--s2);stroke-dasharray:6 4}
.p0{fill:var(--s0)}
.p1{fill:var(--s1)}
.p2{fill:var(--s2)}
";

/// A chart of one or more plots side by side, with common series.
pub(super) struct Chart {
    pub(super) title: String,
    /// Names of the series, at most three.
    pub(super) series: Vec<String>,
    pub(super) plots: Vec<Plot>,
}

/// A plot of a chart. Its vertical axis starts at 0.
pub(super) struct Plot {
    /// Title of the horizontal axis.
    pub(super) x_title: String,
    /// Points of each series of the chart with ascending x; empty for a series that the plot does not have.
    pub(super) points: Vec<Vec<(f64, f64)>>,
}

/// Positions of values in a plot.
struct Scale {
    left: f64,
    right: f64,
    x_max: f64,
    y_max: f64,
    y_step: f64,
}

impl Scale {
    fn new(plot: &Plot, left: f64, right: f64) -> Self {
        let points = || plot.points.iter().flatten();
        let x_max = points().map(|(x, _)| *x).fold(f64::MIN_POSITIVE, f64::max);
        let largest = points().map(|(_, y)| *y).fold(f64::MIN_POSITIVE, f64::max);
        let y_step = tick_step(largest);
        Self { left, right, x_max, y_max: (largest / y_step).ceil() * y_step, y_step }
    }

    fn x(&self, value: f64) -> f64 {
        self.left + (self.right - self.left) * value / self.x_max
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * value / self.y_max
    }

    /// Values of the ticks of the vertical axis.
    fn y_ticks(&self) -> impl Iterator<Item = f64> {
        let step = self.y_step;
        let count = (self.y_max / step).round();
        std::iter::successors(Some(0.0), |number| Some(number + 1.0))
            .take_while(move |number| *number <= count)
            .map(move |number| number * step)
    }
}

impl Chart {
    /// The chart as SVG.
    pub(super) fn to_svg(&self) -> String {
        let title = escape(&self.title);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n<style>\n{STYLE}</style>\n\
             <rect class=\"back\" width=\"100%\" height=\"100%\"/>\n\
             <text class=\"title\" x=\"16\" y=\"27\">{title}</text>\n"
        );
        self.write_legend(&mut svg);
        let mut left = 0.0;
        #[expect(clippy::cast_precision_loss, reason = "a chart has a few plots")]
        let width = WIDTH / self.plots.len() as f64;
        for plot in &self.plots {
            let scale = Scale::new(plot, left + LEFT_MARGIN, left + width - RIGHT_MARGIN);
            write_axes(&mut svg, plot, &scale);
            for (number, points) in plot.points.iter().enumerate() {
                write_series(&mut svg, number, points, &scale);
            }
            write_last_values(&mut svg, plot, &scale);
            left += width;
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn write_legend(&self, svg: &mut String) {
        let mut x = 16.0;
        for (number, name) in self.series.iter().enumerate() {
            let _ = writeln!(
                svg,
                "<path class=\"line s{number}\" d=\"M{x:.1} 48h26\"/><text x=\"{:.1}\" y=\"52\">{}</text>",
                x + 33.0,
                escape(name)
            );
            // 7 pixels are more than the mean width of a character.
            #[expect(clippy::cast_precision_loss, reason = "a name has some characters")]
            let length = name.chars().count() as f64;
            x += 33.0 + 7.0 * length + 22.0;
        }
    }
}

fn write_axes(svg: &mut String, plot: &Plot, scale: &Scale) {
    for value in scale.y_ticks() {
        let y = scale.y(value);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{:.1} {y:.1}H{:.1}\"/>\
             <text class=\"axis end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            scale.left,
            scale.right,
            scale.left - 8.0,
            y + 4.5,
            format_value(value)
        );
    }
    let mut ticks: Vec<f64> = plot.points.iter().flatten().map(|(x, _)| *x).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for value in ticks {
        let _ = writeln!(
            svg,
            "<text class=\"axis middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            scale.x(value),
            BOTTOM + 20.0,
            format_value(value)
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        f64::midpoint(scale.left, scale.right),
        BOTTOM + 44.0,
        escape(&plot.x_title)
    );
}

fn write_series(svg: &mut String, number: usize, points: &[(f64, f64)], scale: &Scale) {
    if points.is_empty() {
        return;
    }
    let positions = points.iter().map(|(x, y)| format!("{:.1},{:.1}", scale.x(*x), scale.y(*y)));
    let _ = writeln!(
        svg,
        "<polyline class=\"line s{number}\" points=\"{}\"/>",
        positions.collect::<Vec<_>>().join(" ")
    );
    for (x, y) in points {
        let _ = writeln!(
            svg,
            "<circle class=\"p{number}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"/>",
            scale.x(*x),
            scale.y(*y)
        );
    }
}

/// Writes the value of the last point of each series to the right of the point.
fn write_last_values(svg: &mut String, plot: &Plot, scale: &Scale) {
    let last: Vec<(f64, f64)> = plot.points.iter().filter_map(|points| points.last().copied()).collect();
    let base_lines = spread(&last.iter().map(|(_, value)| scale.y(*value) + 4.5).collect::<Vec<_>>());
    for ((x, value), y) in last.iter().zip(base_lines) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            scale.x(*x) + 9.0,
            format_value(*value)
        );
    }
}

/// Moves base lines upwards until each two have at least the distance [`LINE_HEIGHT`].
fn spread(base_lines: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..base_lines.len()).collect();
    let at = |index: usize| base_lines.get(index).copied().unwrap_or_default();
    // From the bottom to the top.
    order.sort_by(|one, other| at(*other).total_cmp(&at(*one)));
    let mut moved = base_lines.to_vec();
    let mut lowest_free = f64::INFINITY;
    for index in order {
        let y = at(index).min(lowest_free);
        lowest_free = y - LINE_HEIGHT;
        if let Some(moved) = moved.get_mut(index) {
            *moved = y;
        }
    }
    moved
}

/// The smallest of 1, 2 and 5 times a power of ten that divides the axis into at most [`MAX_INTERVALS`].
fn tick_step(largest: f64) -> f64 {
    let least = largest / MAX_INTERVALS;
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= least)
        .unwrap_or(10.0 * power)
}

/// A number with two digits below 1, with one below 10, and otherwise whole with separated thousands.
pub(super) fn format_value(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let decimals = if value < 0.995 { 2 } else { usize::from(value < 9.95) };
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits = whole.len();
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (digits - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if fraction.is_empty() { grouped } else { format!("{grouped}.{fraction}") }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (0.05, "0.05"),
            (0.5, "0.5"),
            (0.999, "1"),
            (4.04, "4"),
            (4.06, "4.1"),
            (9.96, "10"),
            (171.4, "171"),
            (1_205.0, "1,205"),
            (1_234_567.0, "1,234,567"),
        ] {
            assert_eq!(format_value(value), text);
        }
    }

    #[test]
    fn an_axis_has_at_most_five_round_intervals() {
        for (largest, step) in
            [(0.3, 0.1), (1.0, 0.2), (171.0, 50.0), (250.0, 50.0), (251.0, 100.0), (1_205.0, 500.0)]
        {
            assert!((tick_step(largest) - step).abs() < 1e-9, "{largest}: {}", tick_step(largest));
        }
    }

    #[test]
    fn values_of_close_points_do_not_overlap() {
        assert_eq!(spread(&[100.0, 250.0, 245.0]), [100.0, 250.0, 235.0]);
        assert_eq!(spread(&[245.0, 250.0, 247.0]), [220.0, 250.0, 235.0]);
        assert!(spread(&[]).is_empty());
    }

    #[test]
    fn a_chart_has_a_line_for_each_series_of_each_plot() {
        let plot = |x_title: &str, points: &[&[(f64, f64)]]| Plot {
            x_title: x_title.to_owned(),
            points: points.iter().map(|points| points.to_vec()).collect(),
        };
        let chart = Chart {
            title: "Claims & volumes".to_owned(),
            series: vec!["ours".to_owned(), "theirs".to_owned()],
            plots: vec![
                plot("volumes", &[&[(0.0, 200.0), (20_000.0, 171.0)], &[(0.0, 90.0), (20_000.0, 31.0)]]),
                plot("ms", &[&[(0.0, 200.0), (50.0, 100.0)], &[]]),
            ],
        };
        let svg = chart.to_svg();
        assert_eq!(svg, chart.to_svg());
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert_eq!(svg.matches("<circle").count(), 6);
        assert!(svg.contains("<polyline class=\"line s1\" points=\"58.0,171.7 374.0,223.0\"/>"), "{svg}");
        assert!(svg.contains("Claims &amp; volumes") && svg.contains(">20,000</text>"), "{svg}");
        assert!(svg.contains("prefers-color-scheme:dark"), "{svg}");
    }
}
