//! Figures: lines and bars with axes and legends, as SVG or PNG.
//!
//! A [`Figure`] is data and knows nothing of how it is drawn. Text in a PNG is set in DejaVu Sans, which
//! is part of the program: neither building nor drawing takes fonts of the system. An SVG names the
//! family `sans-serif` and leaves the choice to who shows it.

mod draw;
mod scale;

use plotters::prelude::{BitMapBackend, IntoDrawingArea, SVGBackend, WHITE};
use plotters::style::{FontStyle, register_font};

/// A picture of one or several panels.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Title.
    pub title: String,
    /// From left to right, then down.
    pub panels: Vec<Panel>,
}

/// A pair of axes and what is between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// Title.
    pub title: String,
    /// Name and unit of the horizontal axis.
    pub x: String,
    /// Name and unit of the vertical axis.
    pub y: String,
    /// Whether the vertical axis is logarithmic; values of 0 and less are left out then.
    pub logarithmic: bool,
    /// Contents between the axes.
    pub content: Content,
}

/// Contents of a panel.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Values over numbers.
    Lines(Vec<Line>),
    /// Values by category.
    Bars {
        /// The names below the axis.
        categories: Vec<String>,
        /// A bar of each in every category.
        series: Vec<Bars>,
    },
}

/// Points that belong together.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// By rising x.
    pub points: Vec<(f64, f64)>,
    /// Joined by a line, or each by itself: what others have published.
    pub joined: bool,
}

/// Bars that belong together.
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// Name in the legend.
    pub name: String,
    /// By category.
    pub values: Vec<Option<f64>>,
}

/// Why there is no picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the figure cannot be drawn: {0}")]
pub struct PlotError(String);

impl Panel {
    /// Lines.
    pub fn lines(title: &str, x: &str, y: &str, lines: Vec<Line>) -> Self {
        Self::new(title, x, y, Content::Lines(lines))
    }

    /// Bars.
    pub fn bars(title: &str, x: &str, y: &str, categories: Vec<String>, series: Vec<Bars>) -> Self {
        Self::new(title, x, y, Content::Bars { categories, series })
    }

    fn new(title: &str, x: &str, y: &str, content: Content) -> Self {
        Self {
            title: title.to_owned(),
            x: x.to_owned(),
            y: y.to_owned(),
            logarithmic: false,
            content,
        }
    }

    /// All that its vertical axis is to show.
    fn values(&self) -> Box<dyn Iterator<Item = f64> + '_> {
        match &self.content {
            Content::Lines(lines) => {
                let points = lines.iter().flat_map(|line| &line.points);
                Box::new(points.map(|point| point.1))
            }
            Content::Bars { series, .. } => {
                let values = series.iter().flat_map(|bars| &bars.values);
                Box::new(values.copied().flatten())
            }
        }
    }

    /// The same with a logarithmic vertical axis.
    #[must_use]
    pub fn logarithmic(self) -> Self {
        Self {
            logarithmic: true,
            ..self
        }
    }
}

impl Line {
    /// Points joined by a line.
    pub fn joined(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.into(),
            points,
            joined: true,
        }
    }
}

impl Bars {
    /// Bars.
    pub fn new(name: impl Into<String>, values: Vec<Option<f64>>) -> Self {
        Self {
            name: name.into(),
            values,
        }
    }
}

impl Figure {
    /// The figure as an SVG document.
    ///
    /// # Errors
    /// [`PlotError`] when there is no panel.
    pub fn svg(&self) -> Result<String, PlotError> {
        let mut text = String::new();
        register_fonts()?;
        let area = SVGBackend::with_string(&mut text, draw::size(self, 1)?).into_drawing_area();
        area.fill(&WHITE)?;
        draw::figure(self, &area, 1)?;
        drop(area);
        Ok(text)
    }

    /// The figure as a PNG file, two pixels where the SVG has one.
    ///
    /// # Errors
    /// As [`Figure::svg`].
    pub fn png(&self) -> Result<Vec<u8>, PlotError> {
        const SCALE: u32 = 2;
        let (width, height) = draw::size(self, SCALE)?;
        register_fonts()?;
        let mut pixels = vec![255; width as usize * height as usize * 3];
        let area = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
        draw::figure(self, &area, SCALE)?;
        drop(area);
        encoded(&pixels, width, height).map_err(|error| PlotError(error.to_string()))
    }
}

/// Tells plotters of the fonts, which measures text with them for both kinds of picture.
fn register_fonts() -> Result<(), PlotError> {
    for (style, font) in [
        (FontStyle::Normal, dejavu::sans::regular()),
        (FontStyle::Bold, dejavu::sans::bold()),
    ] {
        register_font("sans-serif", style, font)
            .map_err(|_| PlotError("the font of the program is not one".to_owned()))?;
    }
    Ok(())
}

/// Pixels of three bytes as a PNG file.
fn encoded(pixels: &[u8], width: u32, height: u32) -> Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn figure() -> Figure {
        let line = |name: &str, joined, factor: f64| Line {
            name: name.to_owned(),
            points: (0..=10)
                .map(|x| (f64::from(10 * x), 1.0 - factor * f64::from(x)))
                .collect(),
            joined,
        };
        let lines = vec![
            line("fresh routing", true, 0.001),
            line("FTreeMinRC", true, 0.01),
            line("published", false, 0.011),
        ];
        let bars = |name: &str, values: [Option<f64>; 3]| Bars::new(name, values.to_vec());
        let categories = ["324", "648", "a very long category"].map(str::to_owned);
        let (x, y) = ("migrations in % of all", "effective bisection bandwidth");
        let values = [Some(1.0), Some(20.0), Some(400.0)];
        let series = vec![
            bars("ours", values),
            bars("published", [Some(2.0), None, Some(0.0)]),
        ];
        Figure {
            title: "Two <panels> & a title".to_owned(),
            panels: vec![
                Panel::lines("Lines", x, y, lines),
                Panel::bars("Bars", x, y, categories.to_vec(), series).logarithmic(),
            ],
        }
    }

    #[test]
    fn an_svg_is_well_formed_and_says_what_it_shows() {
        let svg = figure().svg().unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<&str> = document
            .descendants()
            .filter(|node| node.has_tag_name("text"))
            .filter_map(|node| node.text())
            .map(str::trim)
            .collect();
        for text in [
            "Two <panels> & a title",
            "Lines",
            "FTreeMinRC",
            "published",
            "migrations in % of all",
            "effective bisection bandwidth",
            "648",
            "a very long category",
        ] {
            assert!(texts.contains(&text), "{text} in {texts:?}");
        }
        let bars = document
            .descendants()
            .filter(|node| node.has_tag_name("rect") && node.attribute("fill") == Some("#0072B2"));
        // Three bars, of which the swatches of two legends have the colour too.
        assert_eq!(bars.count(), 3 + 2);
    }

    fn bars_of(values: &[f64], names: &[&str]) -> Panel {
        let values = values.iter().copied().map(Some).collect();
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Panel::bars(
            "",
            "tree",
            "packets",
            names,
            vec![Bars::new("ours", values)],
        )
    }

    fn drawn(panels: Vec<Panel>) -> String {
        let title = String::new();
        Figure { title, panels }.svg().unwrap()
    }

    /// Panels that are compared have one scale: equal heights mean equal values.
    #[test]
    fn panels_of_one_quantity_have_one_scale() {
        let svg = drawn(vec![bars_of(&[1.0], &["a"]), bars_of(&[100.0], &["a"])]);
        let document = roxmltree::Document::parse(&svg).unwrap();
        let height = |node: roxmltree::Node<'_, '_>| -> Option<f64> {
            let is_bar = node.attribute("fill") == Some("#0072B2");
            is_bar.then(|| node.attribute("height")?.parse().ok())?
        };
        let mut heights: Vec<f64> = document.descendants().filter_map(height).collect();
        // Without the patches of the legends.
        heights.retain(|&height| height != 12.0);
        assert_eq!(heights.len(), 2, "{heights:?}");
        assert!(heights[0] * 20.0 < heights[1], "{heights:?}");
    }

    #[test]
    fn names_below_bars_do_not_meet() {
        let long = [
            "16 x 16, four broken links",
            "8 x 8 x 4",
            "fat-tree of 128 machines",
        ];
        for count in [2, 3, 7, 12] {
            let names: Vec<String> = (0..count)
                .map(|at| format!("{} {at}", long[at % 3]))
                .collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let svg = drawn(vec![bars_of(&vec![1.0; count], &names)]);
            let document = roxmltree::Document::parse(&svg).unwrap();
            let place = |name: &&str| {
                let mut nodes = document.descendants();
                let found = nodes.find(|node| node.text().is_some_and(|text| text.trim() == *name));
                let found = found.expect("is shown");
                let number = |name| -> f64 { found.attribute(name).unwrap().parse().unwrap() };
                // A letter of DejaVu Sans is 0.55 of its size wide, on average over such text less.
                (number("x"), number("y"), name.len() as f64 * 15.0 * 0.4)
            };
            let places: Vec<(f64, f64, f64)> = names.iter().map(place).collect();
            for (at, one) in places.iter().enumerate() {
                assert!(
                    one.0 - one.2 / 2.0 >= 0.0 && one.0 + one.2 / 2.0 <= 544.0,
                    "{one:?}"
                );
                for other in &places[at + 1..] {
                    let beside = (one.0 - other.0).abs() >= (one.2 + other.2) / 2.0;
                    assert!(
                        beside || (one.1 - other.1).abs() >= 15.0,
                        "{one:?} {other:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_png_has_its_size_and_is_not_empty() {
        let bytes = figure().png().unwrap();
        let decoder = png::Decoder::new(std::io::Cursor::new(&bytes));
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), draw::size(&figure(), 2).unwrap());
        let dark = pixels
            .chunks(3)
            .filter(|pixel| pixel.iter().all(|&part| part < 96));
        assert!(dark.count() > 1000, "text and axes");
    }

    #[test]
    fn nothing_to_show() {
        let empty = Figure {
            title: String::new(),
            panels: Vec::new(),
        };
        assert!(empty.svg().is_err() && empty.png().is_err());
        let mut flat = figure();
        flat.panels[0].content = Content::Lines(Vec::new());
        flat.panels[1].content = Content::Bars {
            categories: Vec::new(),
            series: Vec::new(),
        };
        assert!(flat.svg().is_ok() && flat.png().is_ok());
    }
}
