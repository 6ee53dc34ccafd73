//! Tori and meshes.

use fabric::Topology;

use crate::hosts::{Builder, Hosts, MAX_HOSTS};

/// Switches in a grid of any number of dimensions, each cabled to its neighbours: a torus where
/// the dimensions are rings, a mesh where they end.
///
/// In dimension d, from 0, port 2d + 1 leads to the next switch and port 2d + 2 to the one before;
/// hosts are at the ports after these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torus {
    shape: Vec<u32>,
    ring: bool,
    hosts: u8,
}

/// Why parameters make no torus.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TorusError {
    /// No dimensions, or too many.
    #[error("{0} dimensions; a torus has 1 to 8")]
    Dimensions(usize),
    /// A dimension with fewer than two switches.
    #[error("dimension {dimension} has {size} switches; give at least 2")]
    Size {
        /// From 1.
        dimension: usize,
        /// The given size.
        size: u32,
    },
    /// More ports than a switch has.
    #[error("a switch would have {0} ports; a switch has up to 254")]
    Ports(usize),
    /// More switches or hosts than a generator makes.
    #[error("{0} switches or hosts; up to 65535 are made")]
    TooLarge(u64),
}

impl Torus {
    /// A torus with this many switches per dimension and hosts per switch.
    ///
    /// # Errors
    /// [`TorusError`].
    pub fn new(shape: &[u32], hosts: u8) -> Result<Self, TorusError> {
        if !(1..=8).contains(&shape.len()) {
            return Err(TorusError::Dimensions(shape.len()));
        }
        if let Some(at) = shape.iter().position(|&size| size < 2) {
            let (dimension, size) = (at + 1, shape[at]);
            return Err(TorusError::Size { dimension, size });
        }
        let ports = 2 * shape.len() + usize::from(hosts);
        if ports > 254 {
            return Err(TorusError::Ports(ports));
        }
        let product = |product: u64, &size: &u32| product.checked_mul(size.into());
        let switches = shape.iter().try_fold(1, product).unwrap_or(u64::MAX);
        let largest = switches.saturating_mul(u64::from(hosts).max(1));
        if largest > MAX_HOSTS {
            return Err(TorusError::TooLarge(largest));
        }
        Ok(Self {
            shape: shape.to_vec(),
            ring: true,
            hosts,
        })
    }

    /// A mesh: the same without the cables that close the rings.
    ///
    /// # Errors
    /// [`TorusError`].
    pub fn mesh(shape: &[u32], hosts: u8) -> Result<Self, TorusError> {
        let torus = Self::new(shape, hosts)?;
        Ok(Self {
            ring: false,
            ..torus
        })
    }

    /// Switches, vSwitches not among them.
    pub fn switches(&self) -> usize {
        self.shape.iter().map(|&size| size as usize).product()
    }

    /// The place of a switch in each dimension, from 0; switches are numbered with dimension 0
    /// running fastest.
    pub fn coordinates(&self, mut switch: usize) -> Vec<u32> {
        let mut place = Vec::with_capacity(self.shape.len());
        for &size in &self.shape {
            place.push((switch % size as usize) as u32);
            switch /= size as usize;
        }
        place
    }

    /// The cables: a switch, the next one, and the dimension.
    fn cables(&self) -> Vec<(usize, usize, usize)> {
        let mut cables = Vec::new();
        let mut stride = 1;
        for (dimension, &size) in self.shape.iter().enumerate() {
            for switch in 0..self.switches() {
                let last = switch / stride % size as usize + 1 == size as usize;
                match (last, self.ring) {
                    (false, _) => cables.push((switch, switch + stride, dimension)),
                    (true, true) => {
                        let first = switch - stride * (size as usize - 1);
                        cables.push((switch, first, dimension));
                    }
                    (true, false) => {}
                }
            }
            stride *= size as usize;
        }
        cables
    }

    /// The nodes and cables: switches, then hosts.
    pub fn topology(&self, hosts: Hosts) -> Topology {
        let mut builder = Builder::new(hosts);
        let trunks = 2 * self.shape.len() as u8;
        let nodes: Vec<_> = (0..self.switches())
            .map(|switch| {
                let place = self.coordinates(switch);
                let place: Vec<_> = place.iter().map(u32::to_string).collect();
                let name = format!("switch {}", place.join("."));
                builder.switch(trunks + self.hosts, &name)
            })
            .collect();
        for (a, b, dimension) in self.cables() {
            let port = 2 * dimension as u8 + 1;
            builder.cable((nodes[a], port), (nodes[b], port + 1));
        }
        for &node in &nodes {
            for port in 1..=self.hosts {
                builder.host((node, trunks + port));
            }
        }
        builder.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let torus = Torus::new(&[4, 3, 2], 2).unwrap();
        let topology = torus.topology(Hosts::Adapters);
        assert_eq!(topology.check(), Ok(()));
        assert_eq!(topology.nodes().len(), 24 * 3);
        assert_eq!(topology.links().len(), 24 * 3 + 24 * 2);
        let mesh = Torus::mesh(&[4, 3], 1).unwrap().topology(Hosts::Adapters);
        assert_eq!(mesh.check(), Ok(()));
        assert_eq!(mesh.links().len(), 3 * 3 + 4 * 2 + 12);
        assert_eq!(torus.coordinates(4 + 2), [2, 1, 0]);
    }

    #[test]
    fn impossible() {
        assert_eq!(Torus::new(&[], 1), Err(TorusError::Dimensions(0)));
        let size = TorusError::Size {
            dimension: 2,
            size: 1,
        };
        assert_eq!(Torus::new(&[4, 1], 1), Err(size));
        assert_eq!(Torus::new(&[4, 4], 251), Err(TorusError::Ports(255)));
        assert!(matches!(
            Torus::new(&[u32::MAX; 8], 1),
            Err(TorusError::TooLarge(_))
        ));
    }
}
