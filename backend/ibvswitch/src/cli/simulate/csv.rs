//! Comma-separated values (RFC 4180, with line feeds alone).

/// Rows of cells as lines.
pub(super) fn lines(rows: &[Vec<String>]) -> String {
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().map(|cell| quoted(cell)).collect();
        format!("{}\n", cells.join(","))
    };
    rows.iter().map(line).collect()
}

fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_with_commas_are_quoted() {
        let rows = [["a", "XGFT(2;2,2;2,1)"], ["say \"b\"", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(lines(&rows), "a,\"XGFT(2;2,2;2,1)\"\n\"say \"\"b\"\"\",\n");
    }
}
