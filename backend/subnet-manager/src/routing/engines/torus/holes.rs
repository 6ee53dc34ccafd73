//! Tori and meshes that lack cables and switches.

use std::collections::{HashMap, VecDeque};

use wire::Guid;

use crate::routing::engines::dimension_order::Grid;
use crate::routing::skeleton::Skeleton;
use crate::routing::{Graph, Vertex};

/// Service levels tell of the rings of so many dimensions.
const DIMENSIONS: usize = 3;

/// Places of switches that were known earlier. Where the lines are that close rings, only those decide that were there
/// first, so that levels stay when switches fail.
#[derive(Debug, Default)]
pub(super) struct Known {
    sizes: Vec<u32>,
    closed: Vec<bool>,
    places: HashMap<Guid, Vec<u32>>,
}

impl Known {
    /// Moves the places in rings to where they were, if this is the grid that was known; then that of now is known.
    pub(super) fn align(&mut self, grid: &mut Grid, names: &[Guid]) {
        let is_same = (&self.sizes, &self.closed) == (&grid.sizes, &grid.closed);
        let shifted = is_same.then(|| self.shifted(grid, names)).flatten();
        match shifted {
            Some(places) => grid.place = places,
            None => {
                self.places.clear();
                self.sizes.clone_from(&grid.sizes);
                self.closed.clone_from(&grid.closed);
            }
        }
        let places = names.iter().copied().zip(grid.place.iter().cloned());
        self.places.extend(places);
    }

    fn shifted(&self, grid: &Grid, names: &[Guid]) -> Option<Vec<Vec<u32>>> {
        let mut known = names.iter().zip(&grid.place);
        let (before, now) = known.find_map(|(name, now)| Some((self.places.get(name)?, now)))?;
        let sizes = grid.sizes.iter();
        let shifts = sizes.zip(before.iter().zip(now));
        let shifts: Vec<u32> = shifts
            .map(|(size, (before, now))| (before + size - now) % size)
            .collect();
        let is_open = shifts.iter().zip(&grid.closed);
        if is_open
            .clone()
            .any(|(&shift, &closed)| shift > 0 && !closed)
        {
            return None;
        }
        let shift = |place: &Vec<u32>| {
            let all = place.iter().zip(&shifts).zip(&grid.sizes);
            all.map(|((at, shift), size)| (at + shift) % size).collect()
        };
        let places: Vec<Vec<u32>> = grid.place.iter().map(shift).collect();
        let fits = |(name, place): (&Guid, &Vec<u32>)| {
            self.places.get(name).is_none_or(|before| before == place)
        };
        names.iter().zip(&places).all(fits).then_some(places)
    }
}

/// By vertex, dimension and direction, the second of which is up: the neighbour.
pub(super) type Neighbours = Vec<Vec<[Option<usize>; 2]>>;

/// The neighbours of each vertex, as the numbers of ports tell.
pub(super) fn neighbours(graph: &Graph, skeleton: &Skeleton) -> Result<Neighbours, String> {
    let name = |vertex: usize| graph.switches[skeleton.switches[vertex]].guid;
    let ports = skeleton.arcs.iter().map(|arc| arc.port);
    let dimensions = usize::from(ports.max().unwrap_or(0)).div_ceil(2);
    if !(1..=DIMENSIONS).contains(&dimensions) {
        return Err(format!(
            "the cables between switches are at ports up to {}, and tori and meshes of one to {DIMENSIONS} dimensions \
             have them at ports 1 to {}; use nue",
            2 * dimensions,
            2 * DIMENSIONS
        ));
    }
    let mut neighbours = vec![vec![[None; 2]; dimensions]; skeleton.len()];
    for (at, own) in neighbours.iter_mut().enumerate() {
        for arc in &skeleton.arcs[skeleton.arcs_of(at)] {
            let (up, port) = (arc.port % 2 == 1, arc.port);
            let back = if up { port + 1 } else { port - 1 };
            if skeleton.arcs[arc.back as usize].port != back {
                return Err(format!(
                    "switch {} port {port} does not lead to port {back} of its neighbour; change the cable, or use nue",
                    name(at)
                ));
            }
            own[usize::from(port - 1) / 2][usize::from(up)] = Some(arc.to as usize);
        }
    }
    Ok(neighbours)
}

/// The size of the whole rings of each dimension; 0 where there is none.
fn rings(neighbours: &Neighbours) -> Result<Vec<u32>, String> {
    let dimensions = neighbours.first().map_or(0, Vec::len);
    let mut sizes = vec![0; dimensions];
    for (dimension, size) in sizes.iter_mut().enumerate() {
        let mut seen = vec![false; neighbours.len()];
        for start in 0..neighbours.len() {
            let (mut at, mut links) = (start, 0);
            while !std::mem::replace(&mut seen[at], true) {
                let Some(next) = neighbours[at][dimension][1] else {
                    break;
                };
                (at, links) = (next, links + 1);
            }
            if at != start || links == 0 {
                continue;
            }
            if *size != 0 && *size != links {
                return Err(format!(
                    "dimension {dimension} has rings of {size} switches and of {links}; use nue"
                ));
            }
            *size = links;
        }
    }
    Ok(sizes)
}

/// The places of all vertices, by what is left of a torus or mesh. A dimension is one of rings if one of these is whole.
pub(super) fn grid(
    skeleton: &Skeleton,
    switches: &[Vertex],
    neighbours: &Neighbours,
) -> Result<Grid, String> {
    let name = |vertex: usize| switches[skeleton.switches[vertex]].guid;
    let rings = rings(neighbours)?;
    let mut places: Vec<Option<Vec<i64>>> = vec![None; skeleton.len()];
    if let Some(first) = places.first_mut() {
        *first = Some(vec![0; rings.len()]);
    }
    let mut queue = VecDeque::from([0]);
    while let Some(at) = queue.pop_front() {
        let Some(own) = neighbours.get(at).and(places[at].clone()) else {
            break;
        };
        for (dimension, of) in neighbours[at].iter().enumerate() {
            for (to, step) in of.iter().zip([-1, 1]) {
                let Some(to) = *to else {
                    continue;
                };
                let mut place = own.clone();
                place[dimension] += step;
                if rings[dimension] > 0 {
                    place[dimension] = place[dimension].rem_euclid(rings[dimension].into());
                }
                match &places[to] {
                    None => {
                        places[to] = Some(place);
                        queue.push_back(to);
                    }
                    Some(known) if *known != place => {
                        return Err(format!(
                            "switch {} has two places in the grid, depending on the way to it; change cables, or use nue",
                            name(to)
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
    }
    let found: Option<Vec<Vec<i64>>> = places.iter().cloned().collect();
    let Some(found) = found else {
        let vertex = places.iter().position(Option::is_none).unwrap_or(0);
        return Err(format!("switch {} is connected to no other", name(vertex)));
    };
    let mut sizes = Vec::new();
    let mut least = Vec::new();
    for (dimension, &ring) in rings.iter().enumerate() {
        let along = || found.iter().map(|place| place[dimension]);
        let (low, high) = (along().min().unwrap_or(0), along().max().unwrap_or(0));
        let (low, size) = if ring > 0 {
            (0, ring)
        } else {
            (low, (high - low + 1) as u32)
        };
        sizes.push(size);
        least.push(low);
    }
    let place = |place: Vec<i64>| {
        let all = place.iter().zip(&least);
        all.map(|(at, least)| (at - least) as u32)
            .collect::<Vec<u32>>()
    };
    let grid = Grid {
        closed: rings.iter().map(|&ring| ring > 0).collect(),
        place: found.into_iter().map(place).collect(),
        sizes,
    };
    let mut seen = HashMap::new();
    for (vertex, place) in grid.place.iter().enumerate() {
        if let Some(other) = seen.insert(place, vertex) {
            return Err(format!(
                "switches {} and {} have one place in the grid; change cables, or use nue",
                name(other),
                name(vertex)
            ));
        }
    }
    Ok(grid)
}
