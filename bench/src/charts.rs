//! Charts as plain SVG: lines over two axes, a legend whose marks differ in dash as well as in colour, and a text for
//! readers who cannot see them. The charts load nothing.

use std::fmt::Write as _;

use crate::html::escaped;

/// One line of a chart.
pub struct Line {
    /// Name of the line.
    pub name: String,
    /// Index of the colour and dash: the position of the peer in the results, so that a peer looks the same everywhere.
    pub style: usize,
    /// Points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// How values are laid out along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from 0.
    Linear,
    /// By their logarithm.
    Logarithmic,
}

/// An axis.
pub struct Axis {
    /// What the axis shows.
    pub title: String,
    /// Layout of the values.
    pub scale: Scale,
    /// Formats a value as text.
    pub text: fn(f64) -> String,
    /// Marks that replace the computed ones.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Creates an axis with computed marks.
    pub fn new(title: impl Into<String>, scale: Scale, text: fn(f64) -> String) -> Axis {
        Axis {
            title: title.into(),
            scale,
            text,
            ticks: Vec::new(),
        }
    }
}

/// A chart.
pub struct Chart {
    /// What the chart shows, in a few words.
    pub title: String,
    /// Description for readers who cannot see the chart.
    pub description: String,
    /// Axis from left to right.
    pub x: Axis,
    /// Axis from bottom to top.
    pub y: Axis,
    /// The lines.
    pub lines: Vec<Line>,
}

/// Number of styles. A tenth peer would look like the first.
pub const STYLES: usize = 9;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 40.0;

/// The interval of values that an axis covers.
struct Range {
    from: f64,
    to: f64,
    scale: Scale,
}

impl Range {
    fn over(values: impl Iterator<Item = f64> + Clone, scale: Scale) -> Option<Range> {
        let most = values.clone().fold(f64::NEG_INFINITY, f64::max);
        let least = values.fold(f64::INFINITY, f64::min);
        if !most.is_finite() || !least.is_finite() {
            return None;
        }
        let (from, to) = match scale {
            Scale::Linear => (0.0, if most > 0.0 { most * 1.05 } else { 1.0 }),
            Scale::Logarithmic => {
                let least = least.max(1e-9);
                (least, most.max(least * 1.5))
            }
        };
        Some(Range { from, to, scale })
    }

    /// Returns the position of a value on the axis, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (value - self.from) / (self.to - self.from),
            Scale::Logarithmic => (value.max(1e-9) / self.from).ln() / (self.to / self.from).ln(),
        };
        part.clamp(0.0, 1.0)
    }

    /// Returns the values at which marks are drawn: round numbers, or powers of ten.
    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let rough = (self.to - self.from) / 4.0;
                let power = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0]
                    .into_iter()
                    .map(|factor| factor * power)
                    .find(|step| *step >= rough)
                    .unwrap_or(rough);
                let count = ((self.to - self.from) / step) as usize;
                (0..=count).map(|number| self.from + number as f64 * step).collect()
            }
            Scale::Logarithmic => {
                let (first, last) = (self.from.log10().ceil() as i32, self.to.log10().floor() as i32);
                let powers: Vec<f64> = (first..=last).map(|power| 10f64.powi(power)).collect();
                if powers.len() >= 2 {
                    powers
                } else {
                    vec![self.from, self.to]
                }
            }
        }
    }
}

impl Chart {
    /// Returns the chart as SVG, or an empty text when there is nothing to draw.
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| line.points.iter());
        let x = Range::over(points().map(|point| point.0), self.x.scale);
        let y = Range::over(points().map(|point| point.1), self.y.scale);
        let (Some(x), Some(y)) = (x, y) else {
            return String::new();
        };
        let mut svg = format!(
            "<figure class=\"chart\"><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{}\">",
            escaped(&self.title),
            escaped(&self.description)
        );
        self.draw_axes(&mut svg, &x, &y);
        for line in &self.lines {
            let place = |point: &(f64, f64)| {
                let left = LEFT + x.place(point.0) * (WIDTH - LEFT - RIGHT);
                let top = HEIGHT - BOTTOM - y.place(point.1) * (HEIGHT - TOP - BOTTOM);
                format!("{left:.1},{top:.1}")
            };
            let places: Vec<String> = line.points.iter().map(place).collect();
            let style = line.style % STYLES;
            let _ = write!(
                svg,
                "<polyline class=\"line s{style}\" points=\"{}\"><title>{}</title></polyline>",
                places.join(" "),
                escaped(&line.name)
            );
        }
        svg.push_str("</svg>");
        svg.push_str(&self.legend());
        svg.push_str("</figure>");
        svg
    }

    fn draw_axes(&self, svg: &mut String, x: &Range, y: &Range) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let marks = |axis: &Axis, range: &Range| -> Vec<(f64, String)> {
            if axis.ticks.is_empty() {
                range
                    .ticks()
                    .into_iter()
                    .map(|value| (value, (axis.text)(value)))
                    .collect()
            } else {
                axis.ticks.clone()
            }
        };
        for (value, text) in marks(&self.y, y) {
            let top = bottom - y.place(value) * (bottom - TOP);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{top:.1}\" y2=\"{top:.1}\"/><text x=\"{:.1}\" \
                 y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 5.0,
                top + 4.0,
                escaped(&text)
            );
        }
        for (value, text) in marks(&self.x, x) {
            let left = LEFT + x.place(value) * (right - LEFT);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{left:.1}\" x2=\"{left:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/><text x=\"{left:.1}\" \
                 y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 14.0,
                escaped(&text)
            );
        }
        let _ = write!(
            svg,
            "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 6.0,
            escaped(&self.x.title)
        );
    }

    fn legend(&self) -> String {
        let mut html = String::from("<ul class=\"legend\">");
        for line in &self.lines {
            let _ = write!(
                html,
                "<li><svg viewBox=\"0 0 28 8\" aria-hidden=\"true\"><line class=\"line s{}\" x1=\"0\" x2=\"28\" y1=\"4\" \
                 y2=\"4\"/></svg>{}</li>",
                line.style % STYLES,
                escaped(&line.name)
            );
        }
        html.push_str("</ul>");
        html
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, points: Vec<(f64, f64)>) -> Chart {
        let axis = |title: &str| Axis::new(title, scale, |value| format!("{value:.0}"));
        Chart {
            title: "a < b".to_string(),
            description: "\"quoted\"".to_string(),
            x: axis("x"),
            y: axis("y"),
            lines: vec![Line {
                name: "lmdb".to_string(),
                style: 1,
                points,
            }],
        }
    }

    #[test]
    fn points_lie_inside_of_the_chart_and_text_is_escaped() {
        for scale in [Scale::Linear, Scale::Logarithmic] {
            let svg = chart(scale, vec![(1.0, 10.0), (100.0, 1e9), (1e5, 0.0)]).svg();
            assert!(svg.contains("a &lt; b") && svg.contains("&quot;quoted&quot;"), "{svg}");
            let points = svg.split("points=\"").nth(1).and_then(|rest| rest.split('"').next());
            for point in points.expect("a line").split(' ') {
                let (left, top) = point.split_once(',').expect("two numbers");
                let (left, top): (f64, f64) = (left.parse().expect("a number"), top.parse().expect("a number"));
                assert!(
                    (LEFT..=WIDTH).contains(&left) && (0.0..=HEIGHT).contains(&top),
                    "{point}"
                );
            }
        }
    }

    #[test]
    fn chart_without_points_is_left_out() {
        assert_eq!(chart(Scale::Linear, Vec::new()).svg(), "");
    }

    #[test]
    fn marks_are_round_numbers() {
        let range = Range::over([0.0, 97.0].into_iter(), Scale::Linear).expect("values");
        assert_eq!(range.ticks(), [0.0, 50.0, 100.0]);
        let range = Range::over([30.0, 20_000.0].into_iter(), Scale::Logarithmic).expect("values");
        assert_eq!(range.ticks(), [100.0, 1000.0, 10_000.0]);
    }
}
