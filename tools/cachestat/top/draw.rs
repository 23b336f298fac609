//! The screen: a row a page, and below it what is to be seen of the chosen one.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState, Tabs};
use spoc_cache::stats::layout::Counter;
use spoc_tools::units;

use super::board::{Board, Pane, Watched};
use super::{keys, rates};

/// Colours carry nothing that the text does not say, so that a monochrome screen shows all.
pub const DIM: Style = Style::new().add_modifier(Modifier::DIM);
/// Something is wrong.
pub const ALARM: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const HEADING: Style = Style::new().add_modifier(Modifier::BOLD);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);

const COLUMNS: [(&str, u16); 11] = [
    ("PID", 8),
    ("PROCESS", 15),
    ("PAGE", 18),
    ("HIT%", 6),
    ("GET/s", 8),
    ("LOAD/s", 7),
    ("MB/s", 9),
    ("STALL", 6),
    ("EVICT/s", 7),
    ("LEASED", 6),
    ("FREE/SLOTS", 13),
];

/// Draws everything. `note` is a line about the looks themselves.
pub fn draw(frame: &mut Frame<'_>, board: &Board, note: &str) {
    let area = frame.area();
    // Of a small screen the pages get at most the upper half.
    let rows = u16::try_from(board.watched.len()).unwrap_or(u16::MAX).saturating_add(1);
    let rows = rows.clamp(2, (area.height / 2).max(2));
    let parts = [
        Constraint::Length(1),
        Constraint::Length(rows),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ];
    let [top, pages, tabs, pane, bottom] = Layout::vertical(parts).areas(area);
    heading(frame, top, board, note);
    table(frame, pages, board);
    tab_line(frame, tabs, board);
    match (board.chosen(), board.pane) {
        (None, _) => nothing(frame, pane),
        (Some(watched), Pane::Rates) => rates::draw(frame, pane, watched),
        (Some(_), _) => text(frame, pane, board),
    }
    let foot = " q end  h keys  up down page  1-6 pane  s order  space pause";
    frame.render_widget(Paragraph::new(foot).style(DIM), bottom);
    if board.shows_help {
        help(frame, area);
    }
}

fn heading(frame: &mut Frame<'_>, area: Rect, board: &Board, note: &str) {
    let pages = board.watched.len();
    let what = if pages == 1 { "page" } else { "pages" };
    let paused = if board.is_paused { "  paused" } else { "" };
    let left = format!(" cachestat  {pages} {what}, by {}{paused}", board.order.as_str());
    frame.render_widget(Paragraph::new(left).style(HEADING), area);
    frame.render_widget(Paragraph::new(format!("{note} ")).alignment(Alignment::Right), area);
}

fn table(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let right = |text: String| Cell::new(Line::from(text).alignment(Alignment::Right));
    let titles = COLUMNS.iter().enumerate().map(|(number, (title, _))| match number {
        1 | 2 => Cell::new(*title),
        _ => right((*title).to_owned()),
    });
    let rows = board.watched.iter().map(row);
    let widths = COLUMNS.map(|(_, width)| Constraint::Length(width));
    let table = Table::new(rows, widths)
        .header(Row::new(titles).style(HEADING))
        .row_highlight_style(CHOSEN)
        .column_spacing(1);
    let mut state = TableState::new().with_selected(board.place());
    frame.render_stateful_widget(table, area, &mut state);
}

fn row(watched: &Watched) -> Row<'static> {
    let right = |text: String| Cell::new(Line::from(text).alignment(Alignment::Right));
    let interval = &watched.interval;
    let rate = |counter| format!("{:.0}", interval.rate(interval.count(counter)));
    let snapshot = interval.now().snapshot();
    let seen = &watched.seen;
    let page = match interval.now().silent_for() {
        Some(silent) => Cell::new(Span::styled(format!("silent for {:.0} s", silent.as_secs_f64()), ALARM)),
        None if seen.label.is_empty() => Cell::new(format!("#{}", seen.name.number)),
        None => Cell::new(seen.label.clone()),
    };
    Row::new([
        right(seen.name.process.pid.to_string()),
        Cell::new(if seen.command.is_empty() { "-".to_owned() } else { seen.command.clone() }),
        page,
        right(interval.hit_percent().map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}"))),
        right(rate(Counter::Requested)),
        right(rate(Counter::FillsDone)),
        right(format!("{:.1}", interval.mb_per_s())),
        right(format!("{:.0}", interval.stall_ms_per_s())),
        right(rate(Counter::Evictions)),
        right(snapshot.states[3].to_string()),
        right(format!("{}/{}", snapshot.states[0], interval.now().header().slots)),
    ])
}

fn tab_line(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let tabs = Tabs::new(Pane::ALL.map(Pane::title)).select(board.pane as usize).highlight_style(CHOSEN);
    frame.render_widget(tabs, area);
    if let Some(watched) = board.chosen() {
        let header = watched.interval.now().header();
        let about = format!("slots of {} ", units::bytes(header.stride_bytes));
        frame.render_widget(Paragraph::new(about).style(DIM).alignment(Alignment::Right), area);
    }
}

fn text(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let shown = board.lines().iter().skip(board.scroll).take(area.height.into());
    let lines: Vec<Line<'_>> = shown.map(|line| Line::raw(line.as_str())).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

fn nothing(frame: &mut Frame<'_>, area: Rect) {
    let dirs: Vec<String> = spoc_page::search_dirs().iter().map(|dir| dir.display().to_string()).collect();
    let told = format!("\n  no process with a statistics page in {}", dirs.join(", "));
    frame.render_widget(Paragraph::new(told), area);
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let lines: Vec<Line<'_>> =
        keys::HELP.iter().map(|(key, what)| Line::raw(format!(" {key:16} {what}"))).collect();
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_add(2);
    let area = area.centered(Constraint::Max(56), Constraint::Max(height));
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), area);
}
