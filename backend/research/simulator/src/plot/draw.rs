//! Where everything goes in a figure.

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{
    Cartesian2d, ChartBuilder, ChartContext, Circle, DrawingArea, DrawingAreaErrorKind,
    DrawingBackend, PathElement, RGBColor, Rectangle, Text, TextStyle, WHITE,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontDesc, FontFamily, FontStyle};

use super::scale::{Scale, number};
use super::{Bars, Content, Figure, Line, Panel, PlotError};

/// Colours that people with any colour vision tell apart (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x55, 0x55, 0x55),
];
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GRID: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);
const AXIS: RGBColor = RGBColor(0x99, 0x99, 0x99);

const PANEL: (u32, u32) = (520, 380);
const TITLE: u32 = 44;
const MARGIN: u32 = 12;
/// Sizes of text: titles of figures and panels, and all else.
const LARGE: u32 = 24;
const MEDIUM: u32 = 20;
const SMALL: u32 = 15;
/// Width of a letter in parts of its text's size, for backends that do not know it.
const LETTER: f64 = 0.46;
/// Margin left of a chart for the numbers and the name of its axis, and the margin right of it.
const LEFT: u32 = 64;
const RIGHT: u32 = 18;
/// Height of a line of names below bars, and the most lines.
const LINE: u32 = 17;
const MAX_LINES: f64 = 8.0;

fn columns(figure: &Figure) -> u32 {
    match figure.panels.len() {
        0 | 1 => 1,
        2 | 4 => 2,
        _ => 3,
    }
}

/// Width and height in pixels.
pub(super) fn size(figure: &Figure, scale: u32) -> Result<(u32, u32), PlotError> {
    let panels = figure.panels.len() as u32;
    if panels == 0 {
        return Err(PlotError("it has no panel".to_owned()));
    }
    let columns = columns(figure);
    let rows = panels.div_ceil(columns);
    Ok((
        (columns * PANEL.0 + 2 * MARGIN) * scale,
        (rows * PANEL.1 + TITLE + MARGIN) * scale,
    ))
}

type Area<DB> = DrawingArea<DB, Shift>;

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for PlotError {
    fn from(error: DrawingAreaErrorKind<E>) -> Self {
        Self(error.to_string())
    }
}

/// Draws it on white.
pub(super) fn figure<DB: DrawingBackend>(
    figure: &Figure,
    area: &Area<DB>,
    scale: u32,
) -> Result<(), PlotError> {
    let (width, _) = area.dim_in_pixel();
    let place = ((width / 2) as i32, (TITLE / 2 * scale) as i32);
    // Small enough for a long one to fit; bold letters are a fifth wider.
    let letters = figure.title.chars().count().max(1) as f64;
    let fitting = f64::from(width) / (letters * LETTER * 1.2);
    let size = (LARGE * scale).min(fitting as u32).max(1);
    let title = text(size, HPos::Center, VPos::Center);
    let title = title.with_bold();
    area.draw(&Text::new(figure.title.clone(), place, title))?;
    let columns = columns(figure);
    let scales = scales(figure);
    for ((at, panel), vertical) in (0u32..).zip(&figure.panels).zip(scales) {
        let corner = (
            (at % columns * PANEL.0 + MARGIN) * scale,
            (at / columns * PANEL.1 + TITLE) * scale,
        );
        let end = (corner.0 + PANEL.0 * scale, corner.1 + PANEL.1 * scale);
        let part = area
            .clone()
            .shrink((corner.0, corner.1), (end.0 - corner.0, end.1 - corner.1));
        draw_panel(panel, vertical, &part, scale)?;
    }
    area.present()?;
    Ok(())
}

/// The vertical axis of each panel: panels of the same quantity have the same, so that they can be compared.
fn scales(figure: &Figure) -> Vec<Scale> {
    let is_bars = |panel: &Panel| matches!(panel.content, Content::Bars { .. });
    let axis = |panel: &Panel| {
        let of = |other: &&Panel| {
            other.y == panel.y
                && other.logarithmic == panel.logarithmic
                && is_bars(other) == is_bars(panel)
        };
        let values = figure.panels.iter().filter(of).flat_map(Panel::values);
        Scale::of(values, panel.logarithmic, is_bars(panel))
    };
    figure.panels.iter().map(axis).collect()
}

fn text(size: u32, horizontal: HPos, vertical: VPos) -> Words {
    Words {
        size,
        position: Pos::new(horizontal, vertical),
        bold: false,
    }
}

/// Style of text.
#[derive(Clone, Copy)]
struct Words {
    size: u32,
    position: Pos,
    bold: bool,
}

impl Words {
    fn with_bold(self) -> Self {
        Self { bold: true, ..self }
    }
}

impl<'a> From<Words> for TextStyle<'a> {
    fn from(words: Words) -> Self {
        let style = if words.bold {
            FontStyle::Bold
        } else {
            FontStyle::Normal
        };
        let font = FontDesc::new(FontFamily::SansSerif, words.size.into(), style);
        TextStyle::from(font).color(&INK).pos(words.position)
    }
}

fn draw_panel<DB: DrawingBackend>(
    panel: &Panel,
    vertical: Scale,
    area: &Area<DB>,
    scale: u32,
) -> Result<(), PlotError> {
    let (width, height) = area.dim_in_pixel();
    let title = text(MEDIUM * scale, HPos::Center, VPos::Top);
    area.draw(&Text::new(
        panel.title.clone(),
        ((width / 2) as i32, (4 * scale) as i32),
        title,
    ))?;
    let names: Vec<(&str, bool)> = match &panel.content {
        Content::Lines(lines) => lines
            .iter()
            .map(|it| (it.name.as_str(), it.joined))
            .collect(),
        Content::Bars { series, .. } => series.iter().map(|it| (it.name.as_str(), true)).collect(),
    };
    let below = legend(&names, area, 30 * scale, scale)?;
    let chart = area
        .clone()
        .shrink((0, below), (width, height.saturating_sub(below)));
    let mut builder = ChartBuilder::on(&chart);
    builder
        .margin_top(6 * scale)
        .margin_right(RIGHT * scale)
        .margin_bottom(4 * scale)
        .y_label_area_size(LEFT * scale);
    match &panel.content {
        Content::Lines(lines) => draw_lines(panel, lines, vertical, &mut builder, scale),
        Content::Bars { categories, series } => {
            let bars = (categories.as_slice(), series.as_slice());
            draw_bars(panel, bars, vertical, &mut builder, &chart, scale)
        }
    }
}

/// A name beside a patch of its colour for each series, in as many lines as it takes; returns where
/// it ends.
fn legend<DB: DrawingBackend>(
    names: &[(&str, bool)],
    area: &Area<DB>,
    top: u32,
    scale: u32,
) -> Result<u32, PlotError> {
    let (patch, gap, line) = (12 * scale, 6 * scale, 18 * scale);
    let left = 64 * scale;
    let (width, _) = area.dim_in_pixel();
    let words = text(SMALL * scale, HPos::Left, VPos::Center);
    let (mut x, mut y) = (left, top);
    for (at, &(name, filled)) in names.iter().enumerate() {
        let letters = name.chars().count() as f64 * f64::from(SMALL * scale) * LETTER;
        let needed = patch + gap + letters as u32 + 2 * gap;
        if x > left && x + needed > width {
            (x, y) = (left, y + line);
        }
        let (from, to) = (
            (x as i32, y as i32),
            ((x + patch) as i32, (y + patch) as i32),
        );
        let color = COLORS[at % COLORS.len()];
        if filled {
            area.draw(&Rectangle::new([from, to], color.filled()))?
        } else {
            let middle = ((from.0 + to.0) / 2, (from.1 + to.1) / 2);
            let style = color.stroke_width(2 * scale);
            area.draw(&Circle::new(middle, (4 * scale) as i32, style))?;
        }
        let place = ((x + patch + gap) as i32, (y + patch / 2) as i32);
        area.draw(&Text::new(name.to_owned(), place, words))?;
        x += needed;
    }
    Ok(y + line)
}

type Chart<'a, DB> = ChartContext<'a, DB, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The grid, and the axes with their numbers and names.
fn axes<'a, DB: DrawingBackend>(
    panel: &Panel,
    chart: &mut Chart<'a, DB>,
    vertical: Scale,
    numbers_below: bool,
    scale: u32,
) -> Result<(), PlotError> {
    let words = || -> TextStyle<'_> { text(SMALL * scale, HPos::Left, VPos::Top).into() };
    let (along, up) = (
        |&value: &f64| number(value),
        |&place: &f64| vertical.label(place),
    );
    let mut mesh = chart.configure_mesh();
    mesh.light_line_style(WHITE.mix(0.0))
        .bold_line_style(GRID.stroke_width(scale))
        .axis_style(AXIS.stroke_width(scale))
        .label_style(words())
        .axis_desc_style(words())
        .y_desc(if panel.logarithmic {
            format!("{}, logarithmic", panel.y)
        } else {
            panel.y.clone()
        })
        .y_labels(vertical.labels())
        .y_label_formatter(&up)
        .x_label_formatter(&along);
    if numbers_below {
        mesh.x_desc(panel.x.clone()).draw()?
    } else {
        mesh.disable_x_mesh().x_labels(0).draw()?
    }
    Ok(())
}

fn draw_lines<DB: DrawingBackend>(
    panel: &Panel,
    lines: &[Line],
    vertical: Scale,
    builder: &mut ChartBuilder<'_, '_, DB>,
    scale: u32,
) -> Result<(), PlotError> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (mut left, mut right) = points().fold((f64::MAX, f64::MIN), |(left, right), point| {
        (left.min(point.0), right.max(point.0))
    });
    if left >= right {
        let middle = if left == right { left } else { 0.5 };
        (left, right) = (middle - 0.5, middle + 0.5);
    }
    let mut chart = builder
        .x_label_area_size(44 * scale)
        .build_cartesian_2d(left..right, vertical.from..vertical.to)?;
    axes(panel, &mut chart, vertical, true, scale)?;
    for (line, color) in lines.iter().zip(COLORS.iter().cycle()) {
        let places: Vec<(f64, f64)> = line
            .points
            .iter()
            .filter_map(|&(x, y)| Some((x, vertical.place(y)?)))
            .collect();
        let style = color.stroke_width(2 * scale);
        let radius = (3 * scale) as i32;
        if line.joined {
            chart.draw_series([PathElement::new(places.clone(), style)])?;
            let dots = places
                .iter()
                .map(|&at| Circle::new(at, radius, color.filled()));
            chart.draw_series(dots)?;
        } else {
            let rings = places
                .iter()
                .map(|&at| Circle::new(at, radius + scale as i32, style));
            chart.draw_series(rings)?;
        }
    }
    Ok(())
}

fn draw_bars<DB: DrawingBackend>(
    panel: &Panel,
    (categories, series): (&[String], &[Bars]),
    vertical: Scale,
    builder: &mut ChartBuilder<'_, '_, DB>,
    area: &Area<DB>,
    scale: u32,
) -> Result<(), PlotError> {
    /// The part of a category that its bars take.
    const FILLED: f64 = 0.8;
    let (whole, _) = area.dim_in_pixel();
    let letters = |name: &String| name.chars().count() as f64 * f64::from(SMALL * scale) * LETTER;
    let widest = categories.iter().map(letters).fold(0.0, f64::max);
    let room = f64::from(whole.saturating_sub((LEFT + RIGHT) * scale));
    // Names stand in as many lines as it takes, in turns, for those of a line to be apart.
    let slot = room / categories.len().max(1) as f64;
    let lines = ((widest + f64::from(8 * scale)) / slot).ceil();
    let lines = lines.clamp(1.0, MAX_LINES) as u32;
    let below = (lines.max(2) * LINE + 26) * scale;
    let mut chart = builder.x_label_area_size(below).build_cartesian_2d(
        0.0..categories.len().max(1) as f64,
        vertical.from..vertical.to,
    )?;
    axes(panel, &mut chart, vertical, false, scale)?;
    let width = FILLED / series.len().max(1) as f64;
    for (at, (bars, color)) in series.iter().zip(COLORS.iter().cycle()).enumerate() {
        let bars = bars
            .values
            .iter()
            .enumerate()
            .filter_map(|(category, value)| {
                let top = vertical.place((*value)?)?;
                let left = category as f64 + (1.0 - FILLED) / 2.0 + at as f64 * width;
                let foot = if vertical.logarithmic {
                    vertical.from
                } else {
                    0.0
                };
                let corners = [(left, foot), (left + width * 0.94, top)];
                Some(Rectangle::new(corners, color.filled()))
            });
        chart.draw_series(bars)?;
    }
    let (across, down) = chart.plotting_area().get_pixel_range();
    let slot = f64::from(across.end - across.start) / categories.len().max(1) as f64;
    let origin = area.get_pixel_range();
    let words = text(SMALL * scale, HPos::Center, VPos::Top);
    for (at, name) in (0u32..).zip(categories) {
        let lower = at % lines * LINE * scale;
        let x = f64::from(across.start - origin.0.start) + (f64::from(at) + 0.5) * slot;
        // Inside the panel, also at its ends.
        let half = letters(name) / 2.0;
        let x = x.min(f64::from(whole) - half).max(half);
        let y = down.end - origin.1.start + (6 * scale + lower) as i32;
        area.draw(&Text::new(name.clone(), (x as i32, y), words))?;
    }
    let middle = (across.start + across.end) / 2 - origin.0.start;
    let y = down.end - origin.1.start + (below - 20 * scale) as i32;
    area.draw(&Text::new(panel.x.clone(), (middle, y), words))?;
    Ok(())
}
