//! From values to the ends of an axis, and to the words along it.

/// The ends of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) logarithmic: bool,
}

impl Scale {
    /// A vertical axis for these values: from 0, or near the least of them where that is more than
    /// half of the largest and bars do not stand on it.
    pub(super) fn of(values: impl Iterator<Item = f64>, logarithmic: bool, bars: bool) -> Self {
        let shown = |value: &f64| value.is_finite() && (!logarithmic || *value > 0.0);
        let (least, most) = values
            .filter(shown)
            .fold((f64::MAX, f64::MIN), |(least, most), value| {
                (least.min(value), most.max(value))
            });
        if least > most {
            let (from, to) = (0.0, 1.0);
            return Self {
                from,
                to,
                logarithmic,
            };
        }
        let (from, to) = if logarithmic {
            // A bar of the least value has a height, too.
            ((least.log10() - 0.01).floor(), (most.log10() + 0.01).ceil())
        } else {
            let near = !bars && least > most / 2.0 && least > 0.0;
            let from = if near { least } else { least.min(0.0) };
            let room = ((most - from) * 0.08).max(most.abs() * 1e-3);
            (if near { from - room } else { from }, most + room)
        };
        Self {
            from,
            to: if to > from { to } else { from + 1.0 },
            logarithmic,
        }
    }

    /// Where a value is between the ends; `None` for what a logarithmic axis has no place for.
    pub(super) fn place(self, value: f64) -> Option<f64> {
        if !value.is_finite() {
            None
        } else if self.logarithmic {
            (value > 0.0).then(|| value.log10())
        } else {
            Some(value)
        }
    }

    /// Returns the number of labels along it.
    pub(super) fn labels(self) -> usize {
        if self.logarithmic {
            (self.to - self.from) as usize + 1
        } else {
            6
        }
    }

    /// The word at a place.
    pub(super) fn label(self, place: f64) -> String {
        if !self.logarithmic {
            number(place)
        } else if (place - place.round()).abs() > 1e-6 {
            String::new()
        } else if (-3.0..=5.0).contains(&place) {
            number(10f64.powf(place))
        } else {
            format!("1e{place:.0}")
        }
    }
}

/// A number with as many digits as it takes.
pub(super) fn number(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    format!("{}", if rounded == 0.0 { 0.0 } else { rounded })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends() {
        let of = |values: &[f64], logarithmic, bars| {
            let scale = Scale::of(values.iter().copied(), logarithmic, bars);
            (scale.from, scale.to)
        };
        assert_eq!(of(&[0.0, 100.0], false, false), (0.0, 108.0));
        assert_eq!(of(&[90.0, 100.0], false, true), (0.0, 108.0));
        assert_eq!(of(&[90.0, 100.0], false, false), (89.2, 100.8));
        assert_eq!(of(&[1.0, 336_960.0], true, true), (-1.0, 6.0));
        assert_eq!(of(&[], false, false), (0.0, 1.0));
        assert_eq!(of(&[f64::NAN, 0.0], true, false), (0.0, 1.0));
        assert_eq!(of(&[0.0], false, false), (0.0, 1.0));
    }

    #[test]
    fn words() {
        let scale = Scale::of([1.0, 1e9].into_iter(), true, false);
        assert_eq!(scale.label(3.0), "1000");
        assert_eq!(scale.label(7.0), "1e7");
        assert_eq!(scale.label(0.5), "");
        assert_eq!(number(0.1 + 0.2), "0.3");
        assert_eq!(number(-1e-9), "0");
    }
}
