//! Graphs without levels, such as rings and tori, and several subnets: Graphviz lays them out.
//!
//! A switch is one block with the nodes that hang from it alone; a router, and any other node at several switches, is
//! a block of its own. Graphviz finds the places of blocks, subnets and links; the inside of a block is laid out
//! here.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::{
    Area, BUS, Card, Chip, Frame, GAP, Group, HEADER, LEGEND, Layout, MARGIN, Place, SWITCH, Way,
    Wire, to_card,
};
use control::{Link, SubnetName};

/// Why there is no drawing.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// Graphviz is not there.
    #[error(
        "`{program}` cannot be run: {source}; a drawing of a subnet that is not a tree needs Graphviz \
        (Debian: apt-get install graphviz); --format text does not"
    )]
    Missing {
        /// Its program.
        program: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Graphviz does something else than is expected.
    #[error("`{program}` failed: {what}; use another version of Graphviz, or --format text")]
    Failed {
        /// Its program.
        program: &'static str,
        /// Its error text.
        what: String,
    },
}

/// Around the parts of a block.
const PADDING: i32 = 16;
/// Above the blocks of a subnet, where its name is.
const SUBNET: i32 = 24;
/// Graphviz's sizes are in inches, its places in points.
const POINTS: f64 = 72.0;

/// Parts of the drawing that have one place in the graph together.
struct Block<'a> {
    chip: Option<usize>,
    cards: Group,
    width: i32,
    height: i32,
    subnet: Option<&'a str>,
}

impl Block<'_> {
    /// Whether it is a switch with cards, which have a frame.
    fn is_framed(&self) -> bool {
        self.chip.is_some() && !self.cards.cards.is_empty()
    }
}

/// Output of Graphviz: places in points, from the lower left corner.
#[derive(Debug, Deserialize)]
struct Graph {
    bb: String,
    #[serde(default)]
    objects: Vec<Object>,
    #[serde(default)]
    edges: Vec<Edge>,
}

#[derive(Debug, Deserialize)]
struct Object {
    name: String,
    pos: Option<String>,
    bb: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Edge {
    id: String,
    pos: String,
}

pub(super) fn lay_out<'a>(
    mut chips: Vec<Chip<'a>>,
    mut cards: Vec<Card<'a>>,
    between: &[(&'a Link, Place, Place)],
    subnets: &'a [SubnetName],
) -> Result<Layout<'a>, LayoutError> {
    let (blocks, block_of_card) = blocks(&chips, &cards, between);
    let block_of = |place: Place| match place {
        Place::Chip(chip) => chip,
        Place::Card(card) => block_of_card[card],
    };
    let text = describe(&blocks, between, block_of, subnets);
    let program = if subnets.is_empty() { "neato" } else { "dot" };
    let graph = graphviz(program, &text)?;
    let unexpected = || LayoutError::Failed {
        program,
        what: "its output has no coordinates".to_owned(),
    };
    let corners = numbers(&graph.bb).ok_or_else(unexpected)?;
    let &[left, low, right, high] = corners.as_slice() else {
        return Err(unexpected());
    };
    let at = |x: f64, y: f64| {
        let (x, y) = ((x - left).round() as i32, (high - y).round() as i32);
        (x + MARGIN, y + HEADER)
    };

    let mut frames = Vec::new();
    for object in &graph.objects {
        let number = |prefix| object.name.strip_prefix(prefix)?.parse::<usize>().ok();
        if let (Some(subnet), Some(bb)) = (number("cluster_"), &object.bb) {
            let corners = numbers(bb).ok_or_else(unexpected)?;
            let &[left, low, right, high] = corners.as_slice() else {
                return Err(unexpected());
            };
            let ((x, y), (end, bottom)) = (at(left, high), at(right, low));
            frames.push(Frame {
                area: Area {
                    x,
                    y,
                    width: end - x,
                    height: bottom - y,
                },
                subnet: subnets.get(subnet),
            });
        }
        if let (Some(block), Some(pos)) = (number("block_"), &object.pos) {
            let middle = numbers(pos).ok_or_else(unexpected)?;
            let (Some(block), &[x, y]) = (blocks.get(block), middle.as_slice()) else {
                return Err(unexpected());
            };
            let (x, y) = at(x, y);
            let corner = (x - block.width / 2, y - block.height / 2);
            frames.extend(block.place(corner, &mut chips, &mut cards));
        }
    }
    // Subnets behind what is in them.
    frames.sort_by_key(|frame| frame.subnet.is_none());

    let mut wires = Vec::new();
    for edge in &graph.edges {
        let link = edge
            .id
            .parse()
            .ok()
            .and_then(|link: usize| between.get(link));
        let points = numbers(&edge.pos).ok_or_else(unexpected)?;
        let Some(&(link, ..)) = link else {
            return Err(unexpected());
        };
        let points = points.chunks_exact(2).map(|point| at(point[0], point[1]));
        wires.push(Wire {
            way: Way::Curved(points.collect()),
            link,
            label: None,
        });
    }
    for &(link, from, to) in between {
        let (chip, card, port) = match (from, to) {
            (Place::Chip(chip), Place::Card(card)) => (chip, card, link.from.port),
            (Place::Card(card), Place::Chip(chip)) => (chip, card, link.to.port),
            _ => continue,
        };
        if block_of_card[card] == chip {
            let several_rows = blocks[chip].cards.heights.len() > 1;
            wires.push(to_card(
                link,
                port,
                &chips[chip],
                &cards[card],
                several_rows,
            ));
        }
    }
    Ok(Layout {
        width: ((right - left).round() as i32 + 2 * MARGIN).max(560),
        height: (high - low).round() as i32 + HEADER + LEGEND + MARGIN / 2,
        frames,
        chips,
        cards,
        wires,
    })
}

/// The blocks: those of the switches, in their order, then the others; and which of them a card is in.
fn blocks<'a>(
    chips: &[Chip<'a>],
    cards: &[Card<'a>],
    between: &[(&Link, Place, Place)],
) -> (Vec<Block<'a>>, Vec<usize>) {
    let mut ends: Vec<Vec<Option<usize>>> = vec![Vec::new(); cards.len()];
    for &(_, from, to) in between {
        for (one, other) in [(from, to), (to, from)] {
            if let Place::Card(card) = one {
                ends[card].push(match other {
                    Place::Chip(chip) => Some(chip),
                    Place::Card(_) => None,
                });
            }
        }
    }
    let mut below: Vec<Vec<usize>> = vec![Vec::new(); chips.len()];
    let mut alone = Vec::new();
    let mut block_of_card = vec![0; cards.len()];
    for (card, ends) in ends.iter().enumerate() {
        block_of_card[card] = match ends.as_slice() {
            [Some(chip), rest @ ..] if rest.iter().all(|end| *end == Some(*chip)) => {
                below[*chip].push(card);
                *chip
            }
            _ => {
                alone.push(card);
                chips.len() + alone.len() - 1
            }
        };
    }
    let with_chips = chips
        .iter()
        .zip(below)
        .enumerate()
        .map(|(at, (chip, below))| {
            // As wide as high, about: cards are twice as wide as they are high.
            let columns = (1..).find(|columns| 2 * columns * columns >= below.len());
            let cards = Group::new(below, columns.unwrap_or(1), cards, chip.area.width);
            let (width, height) = if cards.cards.is_empty() {
                (chip.area.width, SWITCH.1)
            } else {
                (
                    cards.rail() + cards.width() + 2 * PADDING,
                    SWITCH.1 + BUS + cards.height() + 2 * PADDING,
                )
            };
            Block {
                chip: Some(at),
                cards,
                width,
                height,
                subnet: chip.node.subnet.as_deref(),
            }
        });
    let mut blocks: Vec<Block<'a>> = with_chips.collect();
    blocks.extend(alone.into_iter().map(|card| {
        let area = &cards[card].area;
        Block {
            chip: None,
            cards: Group::new(vec![card], 1, cards, 0),
            width: area.width,
            height: area.height,
            subnet: cards[card].head.and_then(|head| head.subnet.as_deref()),
        }
    }));
    (blocks, block_of_card)
}

impl Block<'_> {
    /// Puts its parts into their places; returns its frame, if it has one.
    fn place<'f>(
        &self,
        (x, y): (i32, i32),
        chips: &mut [Chip<'_>],
        cards: &mut [Card<'_>],
    ) -> Option<Frame<'f>> {
        let padding = if self.is_framed() { PADDING } else { 0 };
        let mut below = (x + padding, y + padding);
        if let Some(chip) = self.chip {
            let area = &mut chips[chip].area;
            let inside = self.width - 2 * padding - self.cards.rail();
            area.x = below.0 + self.cards.rail() + (inside - area.width) / 2;
            area.y = below.1;
            below.1 += SWITCH.1 + BUS;
        }
        self.cards.place(cards, below);
        self.is_framed().then_some(Frame {
            area: Area {
                x,
                y,
                width: self.width,
                height: self.height,
            },
            subnet: None,
        })
    }
}

/// The graph of blocks in Graphviz's language.
fn describe(
    blocks: &[Block<'_>],
    between: &[(&Link, Place, Place)],
    block_of: impl Fn(Place) -> usize,
    subnets: &[SubnetName],
) -> String {
    let mut text = format!(
        "graph {{ graph [overlap=prism, splines=true, sep=\"+{GAP}\", nodesep=0.6, ranksep=1]\n\
         node [shape=box, fixedsize=true, label=\"\"]\n"
    );
    let node = |text: &mut String, at: usize, block: &Block<'_>| {
        let [width, height] = [block.width, block.height].map(|size| f64::from(size) / POINTS);
        // Writing to a string does not fail.
        let _ = writeln!(text, "block_{at} [width={width}, height={height}]");
    };
    for (number, subnet) in subnets.iter().enumerate() {
        // The room that its name takes.
        let _ = writeln!(
            text,
            "subgraph cluster_{number} {{ margin={PADDING}; label=\" \"; fontsize={SUBNET}"
        );
        for (at, block) in blocks.iter().enumerate() {
            if block.subnet == Some(&subnet.name) {
                node(&mut text, at, block);
            }
        }
        text.push_str("}\n");
    }
    let is_inside = |block: &Block<'_>| {
        subnets
            .iter()
            .any(|subnet| block.subnet == Some(&subnet.name))
    };
    for (at, block) in blocks.iter().enumerate() {
        if !is_inside(block) {
            node(&mut text, at, block);
        }
    }
    for (at, &(_, from, to)) in between.iter().enumerate() {
        let (from, to) = (block_of(from), block_of(to));
        if from != to {
            let _ = writeln!(text, "block_{from} -- block_{to} [id={at}]");
        }
    }
    text.push_str("}\n");
    text
}

fn graphviz(program: &'static str, text: &str) -> Result<Graph, LayoutError> {
    let missing = |source| LayoutError::Missing { program, source };
    let mut child = Command::new(program)
        .arg("-Tjson")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(missing)?;
    if let Some(mut input) = child.stdin.take() {
        // It reads all before it writes; one that does not says why.
        let _ = input.write_all(text.as_bytes());
    }
    let output = child.wait_with_output().map_err(missing)?;
    let failed = |what: String| LayoutError::Failed { program, what };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed(said.trim().to_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

/// The numbers of a place, a box or a curve.
fn numbers(text: &str) -> Option<Vec<f64>> {
    let words = text.split([',', ' ']).filter(|word| !word.is_empty());
    words.map(|word| word.parse().ok()).collect()
}
