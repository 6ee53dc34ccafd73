//! Drawing on pixels, with a font of our own.

use std::convert::Infallible;

use ab_glyph::{Font, FontRef, Glyph, ScaleFont, point};
use plotters::prelude::DrawingBackend;
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{BackendColor, BackendCoord, BackendTextStyle, DrawingErrorKind, FontStyle};

use super::PlotError;

/// How much larger plotters' sizes are than a font's: what its SVG divides them by.
const SIZE: f64 = 1.24;

/// Pixels of three bytes.
pub(super) struct Bitmap<'a> {
    pixels: &'a mut [u8],
    width: u32,
    height: u32,
    regular: FontRef<'static>,
    bold: FontRef<'static>,
}

impl<'a> Bitmap<'a> {
    pub(super) fn new(pixels: &'a mut [u8], width: u32, height: u32) -> Result<Self, PlotError> {
        let font = |bytes: &'static [u8]| {
            FontRef::try_from_slice(bytes).map_err(|error| PlotError(error.to_string()))
        };
        Ok(Self {
            pixels,
            width,
            height,
            regular: font(dejavu::sans::regular())?,
            bold: font(dejavu::sans::bold())?,
        })
    }

    /// The letters of a line, from its left end at x 0 and with the top of the line at y 0; and the
    /// line's width and height.
    fn line<S: BackendTextStyle>(&self, text: &str, style: &S) -> (Vec<Glyph>, f32, f32) {
        let font = self.font(style).as_scaled((style.size() / SIZE) as f32);
        let mut x = 0.0;
        let mut last = None;
        let mut glyphs = Vec::new();
        for letter in text.chars() {
            let mut glyph = font.scaled_glyph(letter);
            x += last.map_or(0.0, |last| font.kern(last, glyph.id));
            glyph.position = point(x, font.ascent());
            x += font.h_advance(glyph.id);
            last = Some(glyph.id);
            glyphs.push(glyph);
        }
        (glyphs, x, font.height())
    }

    fn font<S: BackendTextStyle>(&self, style: &S) -> &FontRef<'static> {
        match style.style() {
            FontStyle::Bold => &self.bold,
            _ => &self.regular,
        }
    }
}

impl DrawingBackend for Bitmap<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    fn ensure_prepared(&mut self) -> Result<(), DrawingErrorKind<Infallible>> {
        Ok(())
    }

    fn present(&mut self) -> Result<(), DrawingErrorKind<Infallible>> {
        Ok(())
    }

    fn draw_pixel(
        &mut self,
        (x, y): BackendCoord,
        color: BackendColor,
    ) -> Result<(), DrawingErrorKind<Infallible>> {
        let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else {
            return Ok(());
        };
        if x >= self.width || y >= self.height {
            return Ok(());
        }
        let at = (y as usize * self.width as usize + x as usize) * 3;
        let (red, green, blue) = color.rgb;
        let pixel = &mut self.pixels[at..at + 3];
        if color.alpha >= 1.0 {
            pixel.copy_from_slice(&[red, green, blue]);
            return Ok(());
        }
        for (old, new) in pixel.iter_mut().zip([red, green, blue]) {
            let mixed = f64::from(*old) * (1.0 - color.alpha) + f64::from(new) * color.alpha;
            *old = mixed.round() as u8;
        }
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        (x, y): BackendCoord,
    ) -> Result<(), DrawingErrorKind<Infallible>> {
        let (glyphs, width, height) = self.line(text, style);
        let left = match style.anchor().h_pos {
            HPos::Left => 0.0,
            HPos::Center => -width / 2.0,
            HPos::Right => -width,
        };
        let top = match style.anchor().v_pos {
            VPos::Top => 0.0,
            VPos::Center => -height / 2.0,
            VPos::Bottom => -height,
        };
        let color = style.color();
        let transform = style.transform();
        for glyph in glyphs {
            let Some(outline) = self.font(style).outline_glyph(glyph) else {
                continue;
            };
            let bounds = outline.px_bounds();
            let corner = (
                (bounds.min.x + left).round() as i32,
                (bounds.min.y + top).round() as i32,
            );
            let mut inked = Vec::new();
            outline.draw(|dx, dy, coverage| inked.push((dx as i32, dy as i32, coverage)));
            for (dx, dy, coverage) in inked {
                let (dx, dy) = transform.transform(corner.0 + dx, corner.1 + dy);
                let ink = BackendColor {
                    alpha: color.alpha * f64::from(coverage.clamp(0.0, 1.0)),
                    ..color
                };
                self.draw_pixel((x + dx, y + dy), ink)?;
            }
        }
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let (_, width, height) = self.line(text, style);
        Ok((width.ceil() as u32, height.ceil() as u32))
    }
}

/// Pixels of three bytes as a PNG file.
pub(super) fn png(pixels: &[u8], width: u32, height: u32) -> Result<Vec<u8>, PlotError> {
    let wrong = |error: png::EncodingError| PlotError(error.to_string());
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    let mut writer = encoder.write_header().map_err(wrong)?;
    writer.write_image_data(pixels).map_err(wrong)?;
    writer.finish().map_err(wrong)?;
    Ok(bytes)
}
