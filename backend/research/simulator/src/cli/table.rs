//! Tables of text.

use comfy_table::{CellAlignment, Table, presets};

/// Columns as wide as their widest cell, two spaces apart. The first column stands to the left, the
/// others where `others` says.
pub(super) fn table(rows: &[Vec<String>], others: CellAlignment) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_rows(rows);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if at > 0 {
            column.set_cell_alignment(others);
        }
    }
    table.trim_fmt() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["A", "LONG"], ["wide", "x"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows, CellAlignment::Left), "A     LONG\nwide  x\n");
        assert_eq!(
            table(&rows, CellAlignment::Right),
            "A     LONG\nwide     x\n"
        );
    }
}
