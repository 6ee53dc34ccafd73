//! Results, for people and for programs.

use std::fmt;

use serde::Serialize;

/// Reference for a result, measured in the same run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Reference {
    /// Name, with its unit.
    pub name: &'static str,
    /// Value.
    pub value: f64,
}

/// One result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measurement {
    /// Its name, the same in all versions.
    pub name: &'static str,
    /// Value.
    pub value: f64,
    /// Unit of the value.
    pub unit: &'static str,
    /// Reference, if there is one.
    pub reference: Option<Reference>,
}

impl Serialize for Measurement {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Flat {
            name: &'static str,
            value: f64,
            unit: &'static str,
            reference: Option<&'static str>,
            reference_value: Option<f64>,
        }
        Flat {
            name: self.name,
            value: self.value,
            unit: self.unit,
            reference: self.reference.map(|reference| reference.name),
            reference_value: self.reference.map(|reference| reference.value),
        }
        .serialize(serializer)
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, value, unit) = (self.name, self.value, self.unit);
        write!(f, "{name:<24} {value:>10.3} {unit:<8}")?;
        match self.reference {
            Some(Reference { name, value }) => write!(f, " ({name}: {value:.3})"),
            None => Ok(()),
        }
    }
}

/// All results of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// In the order they were measured.
    pub results: Vec<Measurement>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_has_five_members() {
        let report = Report {
            results: vec![
                Measurement {
                    name: "a",
                    value: 1.5,
                    unit: "ms",
                    reference: None,
                },
                Measurement {
                    name: "b",
                    value: 2.0,
                    unit: "times",
                    reference: Some(Reference {
                        name: "c, ns",
                        value: 3.0,
                    }),
                },
            ],
        };
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"results":[{"name":"a","value":1.5,"unit":"ms","reference":null,"reference_value":null},{"name":"b","value":2.0,"unit":"times","reference":"c, ns","reference_value":3.0}]}"#
        );
    }
}
