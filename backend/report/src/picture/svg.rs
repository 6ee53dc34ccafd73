//! A subnet as a drawing.

use std::fmt::Write;

use super::layout::{
    Area, Card, Chip, Frame, LETTER, LINE, Layout, LayoutError, ROW, TITLE, Way, Wire,
};
use super::{pkeys, short_lid};
use control::{Node, NodeKind, Topology};

/// Colours of a drawing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Theme {
    /// The colours that the viewer prefers.
    #[default]
    Auto,
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

const LIGHT: &str = "\
.bg{fill:#fff}.ink{fill:#1f2733}.dim{fill:#5f6c7b}.card{fill:#f7f9fb;stroke:#cfd7e0}\
.cardhead{fill:#e9eef4}.row{stroke:#e3e8ee}.switch{fill:#dceafe;stroke:#3b82f6}\
.sm{fill:#efe9fe;stroke:#8b5cf6}.block{fill:#f3f5f8;stroke:#dde3ea}.subnet{stroke:#8c99a8}.wire{stroke:#8c99a8}.off{stroke:#d9382c}\
.good{fill:#1a9c4b}.wait{fill:#d98a06}.bad{fill:#d9382c}.badge{fill:#d8f3e1}.badgetext{fill:#11703a}";

const DARK: &str = "\
.bg{fill:#0e131a}.ink{fill:#e7edf4}.dim{fill:#9aa8b8}.card{fill:#161d26;stroke:#303b48}\
.cardhead{fill:#1f2934}.row{stroke:#273240}.switch{fill:#14294a;stroke:#5b9bff}\
.sm{fill:#261d40;stroke:#a78bfa}.block{fill:#121922;stroke:#27313d}.subnet{stroke:#6c7b8c}.wire{stroke:#6c7b8c}.off{stroke:#ff6a5e}\
.good{fill:#42c46f}.wait{fill:#e6a530}.bad{fill:#ff6a5e}.badge{fill:#173d27}.badgetext{fill:#6ee29a}";

const SHAPES: &str = "\
text{font-family:Inter,'Segoe UI','Helvetica Neue',Arial,'DejaVu Sans',sans-serif;font-size:12px}\
.mono{font-family:ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:11px}\
.title{font-size:18px;font-weight:600}.name{font-size:13px;font-weight:600}.small{font-size:11px}\
.end{text-anchor:end}.mid{text-anchor:middle}\
.card,.switch,.sm{stroke-width:1.2}.subnet{fill:none;stroke-width:1.2;stroke-dasharray:2 4}.wire,.off{fill:none;stroke-width:1.6}.off{stroke-dasharray:5 4}";

/// The subnet as an SVG document: switches in levels, hypervisors with their functions below them.
///
/// # Errors
/// [`LayoutError`], where the subnet is none of levels and Graphviz does not lay it out.
pub fn svg(topology: &Topology, theme: Theme) -> Result<String, LayoutError> {
    let layout = Layout::new(topology)?;
    let (width, height) = (layout.width, layout.height);
    let colours = match theme {
        Theme::Light => LIGHT.to_owned(),
        Theme::Dark => DARK.to_owned(),
        Theme::Auto => format!("{LIGHT}@media (prefers-color-scheme:dark){{{DARK}}}"),
    };
    let mut svg = Svg(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"InfiniBand subnet\">\n\
         <style>{SHAPES}{colours}</style>\n\
         <rect class=\"bg\" width=\"{width}\" height=\"{height}\" rx=\"10\"/>\n"
    ));
    svg.text(32, 34, "title ink", "InfiniBand subnet");
    svg.text(width - 32, 34, "dim end", &summary(topology, &layout));
    for frame in &layout.frames {
        svg.frame(frame);
    }
    // Links without data last, so that they are seen where they share a way.
    let (whole, broken): (Vec<&Wire<'_>>, Vec<&Wire<'_>>) = layout
        .wires
        .iter()
        .partition(|wire| wire.link.state == "Active");
    for wire in whole.into_iter().chain(broken) {
        svg.wire(wire);
    }
    for chip in &layout.chips {
        svg.chip(chip);
    }
    for card in &layout.cards {
        svg.card(card);
    }
    svg.legend(height - 22);
    svg.0.push_str("</svg>\n");
    Ok(svg.0)
}

fn summary(topology: &Topology, layout: &Layout<'_>) -> String {
    let of_kind = |kind| {
        topology
            .nodes
            .iter()
            .filter(|node| node.kind == kind)
            .count()
    };
    let hypervisors = layout
        .cards
        .iter()
        .filter(|card| {
            !card.head.is_some_and(|head| {
                matches!(
                    head.kind,
                    NodeKind::Manager | NodeKind::Router | NodeKind::Host
                )
            })
        })
        .count();
    let hosts = of_kind(NodeKind::Host);
    let mut parts = vec![count(layout.chips.len(), "switch", "switches")];
    if hosts > 0 {
        parts.push(count(hosts, "host", "hosts"));
    }
    let routers = of_kind(NodeKind::Router);
    if routers > 0 {
        parts.push(count(routers, "router", "routers"));
    }
    parts.push(count(hypervisors, "hypervisor", "hypervisors"));
    parts.push(count(of_kind(NodeKind::Vf), "VF", "VFs"));
    parts.join(" · ")
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

struct Svg(String);

impl Svg {
    fn add(&mut self, arguments: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.0.write_fmt(arguments);
    }

    fn text(&mut self, x: i32, y: i32, class: &str, text: &str) {
        let text = escaped(text);
        self.add(format_args!(
            "<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{text}</text>\n"
        ));
    }

    fn rectangle(&mut self, area: &Area, class: &str, radius: i32) {
        let Area {
            x,
            y,
            width,
            height,
        } = area;
        self.add(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"{radius}\" class=\"{class}\"/>\n"
        ));
    }

    fn dot(&mut self, x: i32, y: i32, state: &str) {
        let class = match state {
            "Active" => "good",
            "Down" => "bad",
            _ => "wait",
        };
        self.add(format_args!(
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"4.5\" class=\"{class}\"/>\n"
        ));
    }

    fn wire(&mut self, wire: &Wire<'_>) {
        let link = wire.link;
        let class = if link.state == "Active" {
            "wire"
        } else {
            "off"
        };
        let clusters = match &link.clusters[..] {
            [] => String::new(),
            clusters => format!("; clusters {}", clusters.join(", ")),
        };
        let title = escaped(&format!(
            "{} port {} – {} port {}: {} {}, {}{clusters}",
            link.from.node,
            link.from.port,
            link.to.node,
            link.to.port,
            link.width,
            link.speed,
            link.state
        ));
        let path = match &wire.way {
            Way::Straight(points) => rounded(points),
            Way::Curved(points) => curved(points),
        };
        self.add(format_args!(
            "<path d=\"{path}\" class=\"{class}\"><title>{title}</title></path>\n"
        ));
        if let Some((x, y, port)) = wire.label {
            self.text(x, y, "small dim", &port.to_string());
        }
    }

    fn frame(&mut self, frame: &Frame<'_>) {
        let Area { x, y, .. } = frame.area;
        match frame.subnet {
            None => self.rectangle(&frame.area, "block", 12),
            Some(subnet) => {
                self.rectangle(&frame.area, "subnet", 14);
                let name = format!("subnet {}", subnet.name);
                self.text(x + 16, y + 24, "name ink", &name);
                let after = x + 32 + name.chars().count() as i32 * LETTER.0;
                self.text(after, y + 24, "mono dim", &subnet.prefix);
            }
        }
    }

    fn chip(&mut self, chip: &Chip<'_>) {
        let Chip { area, node } = chip;
        self.rectangle(area, "switch", 8);
        let name = shortened(&node.name, area.width - 24, LETTER.0);
        self.text(area.middle(), area.y + 21, "name ink mid", &name);
        let lid = short_lid(node);
        let line = format!("{lid} · {}", count(node.ports.into(), "port", "ports"));
        self.text(area.middle(), area.y + 38, "small dim mid", &line);
    }

    fn card(&mut self, card: &Card<'_>) {
        let Area { x, y, width, .. } = card.area;
        let end = x + width - 12;
        let is_manager = card.head.is_some_and(|head| head.kind == NodeKind::Manager);
        let class = if is_manager { "sm" } else { "card" };
        self.rectangle(&card.area, class, 10);
        if !card.rows.is_empty() {
            let head = Area {
                x: x + 1,
                y: y + 1,
                width: width - 2,
                height: TITLE - 2,
            };
            self.rectangle(&head, "cardhead", 9);
        }
        let right = card.right();
        let room = width - 40 - right.chars().count() as i32 * LETTER.1;
        let name = shortened(card.title, room, LETTER.0);
        self.text(x + 12, y + 20, "name ink", &name);
        let mut guid = card.head.map_or("", |head| head.guid.as_str());
        match card.head {
            Some(head) if card.is_alone() => {
                guid = &head.port_guid;
                self.dot(end - 4, y + 32, head.state.as_deref().unwrap_or_default());
                self.text(end, y + 20, "name ink end", &right);
            }
            _ => self.text(end, y + 20, "small dim end", &right),
        }
        self.text(x + 12, y + 36, "mono dim", guid);
        for (at, line) in card.lines().iter().enumerate() {
            self.text(x + 12, y + TITLE + 12 + at as i32 * LINE, "ink", line);
        }
        for (row, node) in card.rows.iter().enumerate() {
            let y = y + TITLE + row as i32 * ROW;
            self.row(node, (x, y), width, row > 0);
        }
    }

    /// A function in its hypervisor's card.
    fn row(&mut self, node: &Node, (x, y): (i32, i32), width: i32, ruled: bool) {
        let end = x + width - 12;
        if ruled {
            let from = x + 12;
            self.add(format_args!(
                "<path d=\"M{from} {y}H{end}\" class=\"row\" stroke-width=\"1\"/>\n"
            ));
        }
        let cluster = { node.cluster.as_ref() }.map(|name| format!("; cluster {name}"));
        let title = escaped(&format!(
            "{} {}: {}; {}{}",
            super::kind(node),
            node.name,
            node.state.as_deref().unwrap_or_default(),
            node.reason,
            cluster.unwrap_or_default()
        ));
        self.add(format_args!("<g><title>{title}</title>\n"));
        if let Some(cluster) = &node.cluster {
            // A stripe in the cluster's colour.
            let (top, hue) = (y + 4, hue(cluster));
            self.add(format_args!(
                "<rect x=\"{x}\" y=\"{top}\" width=\"5\" height=\"36\" rx=\"2\" fill=\"hsl({hue},65%,52%)\"/>\n"
            ));
        }
        self.dot(x + 17, y + 16, node.state.as_deref().unwrap_or_default());
        let connected = node.connected == Some(true);
        let lid = short_lid(node);
        let badge = if connected { 36 } else { 0 };
        let room = width - 56 - badge - lid.chars().count() as i32 * LETTER.1;
        let name = shortened(&super::title(node), room, LETTER.0);
        self.text(x + 28, y + 20, "name ink", &name);
        if connected {
            let badge = Area {
                x: x + 34 + LETTER.1 * name.chars().count() as i32,
                y: y + 8,
                width: 26,
                height: 16,
            };
            self.rectangle(&badge, "badge", 4);
            self.text(badge.middle(), y + 20, "small badgetext mid", "VM");
        }
        self.text(end, y + 20, "ink end", &lid);
        self.text(x + 28, y + 36, "mono dim", &node.port_guid);
        self.text(end, y + 36, "mono dim end", &pkeys(node, 1));
        self.0.push_str("</g>\n");
    }

    fn legend(&mut self, y: i32) {
        for (x, state, text) in [
            (40, "Active", "Active"),
            (112, "Initialize", "not yet Active"),
            (228, "Down", "down"),
        ] {
            self.dot(x, y - 4, state);
            self.text(x + 10, y, "small dim", text);
        }
        let badge = Area {
            x: 290,
            y: y - 12,
            width: 26,
            height: 16,
        };
        self.rectangle(&badge, "badge", 4);
        self.text(badge.middle(), y, "small badgetext mid", "VM");
        self.text(322, y, "small dim", "a VM is attached");
        let line = y - 4;
        self.add(format_args!("<path d=\"M432 {line}h28\" class=\"off\"/>\n"));
        self.text(466, y, "small dim", "link without data");
    }
}

/// The hue of a cluster, from its name.
fn hue(cluster: &str) -> u32 {
    let sum = cluster.bytes().fold(0, |sum: u32, byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    });
    sum.wrapping_mul(137) % 360
}

/// A curve through points, with two that bend it before each but the first.
fn curved(points: &[(i32, i32)]) -> String {
    let mut path = String::new();
    for (at, (x, y)) in points.iter().enumerate() {
        let command = match at {
            0 => "M",
            1 => "C",
            _ => " ",
        };
        let _ = write!(path, "{command}{x} {y}");
    }
    path
}

/// Straight pieces with round corners.
fn rounded(points: &[(i32, i32)]) -> String {
    const RADIUS: i32 = 9;
    let mut path = String::new();
    let Some(&(x, y)) = points.first() else {
        return path;
    };
    let _ = write!(path, "M{x} {y}");
    for at in 1..points.len() {
        let (from, here) = (points[at - 1], points[at]);
        let Some(&to) = points.get(at + 1) else {
            let _ = write!(path, "L{} {}", here.0, here.1);
            break;
        };
        let toward = |(x, y): (i32, i32)| {
            let (dx, dy) = (x - here.0, y - here.1);
            let length = dx.abs().max(dy.abs()).max(1);
            let step = RADIUS.min(length / 2);
            (here.0 + dx * step / length, here.1 + dy * step / length)
        };
        let (before, after) = (toward(from), toward(to));
        let _ = write!(
            path,
            "L{} {}Q{} {} {} {}",
            before.0, before.1, here.0, here.1, after.0, after.1
        );
    }
    path
}

/// Start and end of a text as far as they fit `width`, a character being about `each` wide.
fn shortened(text: &str, width: i32, each: i32) -> String {
    let room = (width / each).max(2) as usize;
    if text.chars().count() <= room {
        return text.to_owned();
    }
    // The end often says more than the middle, as in `web-frontend-17`.
    let tail = (room - 1) / 2;
    let head: String = text.chars().take(room - 1 - tail).collect();
    let tail: String = text.chars().skip(text.chars().count() - tail).collect();
    format!("{head}…{tail}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::examples::{built_in, two_levels, two_subnets};

    #[test]
    fn an_xml_parser_reads_it() {
        let mut odd = two_levels(2, 2, 1);
        odd.nodes[0].name = "<a & \"b\">".to_owned();
        for topology in [built_in(), two_levels(4, 2, 3), odd] {
            for theme in [Theme::Auto, Theme::Light, Theme::Dark] {
                let text = svg(&topology, theme).expect("has levels");
                let document = roxmltree::Document::parse(&text).expect("is XML");
                let shown: Vec<&str> = document
                    .descendants()
                    .filter(|node| node.has_tag_name("text"))
                    .filter_map(|node| node.text())
                    .collect();
                for node in &topology.nodes {
                    let name = shortened(&node.name, 106, 7);
                    assert!(
                        shown.iter().any(
                            |text| text.starts_with(name.split('…').next().unwrap_or_default())
                        ),
                        "{} in {shown:?}",
                        node.name
                    );
                }
            }
        }
    }

    #[test]
    fn subnets_have_names_and_routers_lids() {
        let text = svg(&two_subnets(), Theme::Light).expect("Graphviz is there");
        let document = roxmltree::Document::parse(&text).expect("is XML");
        let shown: Vec<&str> = document
            .descendants()
            .filter(|node| node.has_tag_name("text"))
            .filter_map(|node| node.text())
            .collect();
        for wanted in [
            "subnet red",
            "fec0:0000:0000:0000",
            "subnet blue",
            "fec0:0000:0000:0001",
            "LID 2 in red",
            "subnet manager blue",
            "a-vm-with-a-rather-long-name-1",
        ] {
            assert!(shown.contains(&wanted), "{wanted} in {shown:?}");
        }
        let routers = shown.iter().filter(|text| text.ends_with(" in blue"));
        assert_eq!(routers.count(), 1);
        assert!(!shown.iter().any(|text| text.contains('…')), "{shown:?}");
    }

    #[test]
    fn long_names_are_shortened() {
        assert_eq!(shortened("abcdefgh", 40, 8), "ab…gh");
        assert_eq!(shortened("abcde", 40, 8), "abcde");
    }
}
