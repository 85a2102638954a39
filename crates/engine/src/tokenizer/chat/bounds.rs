//! The work of a template, and so its memory, is bounded.
//!
//! A render has a budget of bytes that its operations may read and write. All that may take more than an
//! instruction of minijinja takes from it: joined and repeated texts, lists, filters, methods, printed
//! values. A value in a list, a map or a namespace is data of bounded depth, so that neither printing nor
//! dropping it recurses without end.

use super::python;
use minijinja::value::{Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Expression, Output, State, Value, context, filters, functions};
use minijinja_contrib::pycompat;
use std::cell::Cell;
use std::sync::LazyLock;

/// Names that the rewritten template calls.
pub(super) mod name {
    /// No template may use such a name itself.
    pub(crate) const PREFIX: &str = "cenote_";
    pub(crate) const FLAT: &str = "cenote_flat";
    pub(crate) const DEEP: &str = "cenote_deep";
    pub(crate) const DATA: &str = "cenote_data";
    pub(crate) const CONCAT: &str = "cenote_concat";
    pub(crate) const ADD: &str = "cenote_add";
    pub(crate) const MUL: &str = "cenote_mul";
    pub(crate) const REM: &str = "cenote_rem";
}

/// Instructions of a render. Long conversations take some 10,000 for each message at most.
pub(super) const FUEL: u64 = 10_000_000;
/// Bytes that a render may read and write, besides [`WORK_FACTOR`] for each byte of its messages.
const WORK_BYTES: u64 = 64 << 20;
const WORK_FACTOR: u64 = 64;
/// Bytes that a value counts besides its text.
const VALUE_BYTES: u64 = 16;
/// Most lists and maps in each other.
const DEPTH_MAX: usize = 64;
/// Largest width or precision of a formatted value.
pub(super) const WIDTH_MAX: usize = 4096;

thread_local! {
    /// What is left to the render that runs on this thread.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Runs a render of messages of so many bytes with a new budget.
pub(super) fn budgeted<T>(input_bytes: usize, render: impl FnOnce() -> T) -> T {
    LEFT.set(WORK_BYTES.saturating_add(WORK_FACTOR.saturating_mul(input_bytes as u64)));
    render()
}

/// Takes bytes from the budget, before the work that they count.
pub(super) fn take(bytes: usize) -> Result<(), Error> {
    let left = LEFT.get().checked_sub(bytes as u64);
    LEFT.set(left.unwrap_or(0));
    left.map(|_| ()).ok_or_else(|| {
        let message = "the template makes more of these messages than the server's bound of memory for it";
        Error::new(ErrorKind::OutOfFuel, message)
    })
}

fn refused(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Registers the bounded functions, filters, tests and methods.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_function(name::FLAT, |value: Value| flat(&value));
    environment.add_function(name::DEEP, |value: Value| {
        let value = flat(&value)?;
        deep(&value)?;
        Ok::<_, Error>(value)
    });
    environment.add_function(name::DATA, |value: Value| {
        let value = flat(&value)?;
        data(&value)?;
        Ok::<_, Error>(value)
    });
    environment.add_function(name::CONCAT, |values: Rest<Value>| {
        let mut text = String::new();
        values.iter().try_for_each(|value| push_text(&mut text, value))?;
        Ok::<_, Error>(Value::from(text))
    });
    environment.add_function(name::ADD, |values: Rest<Value>| fold(&values, add));
    environment.add_function(name::MUL, |values: Rest<Value>| fold(&values, mul));
    environment.add_function(name::REM, |values: Rest<Value>| fold(&values, rem));
    environment.set_formatter(print);
    environment.set_unknown_method_callback(method);
    install_functions(environment);
    install_filters(environment);
    install_tests(environment);
}

fn install_functions(environment: &mut Environment<'static>) {
    environment.remove_global("debug");
    let namespace = Value::from_function(functions::namespace);
    environment.add_function("namespace", move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        args.iter().try_for_each(data)?;
        namespace.call(state, &args)
    });
    let dict = Value::from_function(functions::dict);
    environment.add_function("dict", move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        args.iter().try_for_each(|arg| deep(arg).map(|_| ()))?;
        dict.call(state, &args)
    });
}

/// Takes from the budget what a filter makes of its values.
type Check = fn(&[Value]) -> Result<(), Error>;

/// How a filter's work depends on its values.
#[derive(Clone, Copy)]
enum Reads {
    /// It reads the value itself, and of a list the items' kinds.
    Flat,
    /// It prints or compares everything.
    Deep,
    /// It compares pairs of items.
    Sorted,
}

fn install_filters(environment: &mut Environment<'static>) {
    use Reads::{Deep, Flat, Sorted};
    let filters = [
        ("safe", Deep, Value::from_function(filters::safe)),
        ("escape", Deep, Value::from_function(filters::escape)),
        ("e", Deep, Value::from_function(filters::escape)),
        ("lower", Deep, Value::from_function(filters::lower)),
        ("upper", Deep, Value::from_function(filters::upper)),
        ("title", Deep, Value::from_function(filters::title)),
        ("capitalize", Deep, Value::from_function(filters::capitalize)),
        ("trim", Deep, Value::from_function(filters::trim)),
        ("string", Deep, Value::from_function(filters::string)),
        ("pprint", Deep, Value::from_function(filters::pprint)),
        ("int", Deep, Value::from_function(filters::int)),
        ("float", Deep, Value::from_function(filters::float)),
        ("length", Flat, Value::from_function(filters::length)),
        ("count", Flat, Value::from_function(filters::length)),
        ("items", Flat, Value::from_function(filters::items)),
        ("reverse", Flat, Value::from_function(filters::reverse)),
        ("split", Flat, Value::from_function(filters::split)),
        ("lines", Flat, Value::from_function(filters::lines)),
        ("first", Flat, Value::from_function(filters::first)),
        ("last", Flat, Value::from_function(filters::last)),
        ("list", Flat, Value::from_function(filters::list)),
        ("attr", Deep, Value::from_function(filters::attr)),
        ("select", Flat, Value::from_function(filters::select)),
        ("reject", Flat, Value::from_function(filters::reject)),
        ("selectattr", Flat, Value::from_function(filters::selectattr)),
        ("rejectattr", Flat, Value::from_function(filters::rejectattr)),
        ("map", Flat, Value::from_function(filters::map)),
        ("chain", Flat, Value::from_function(filters::chain)),
        ("zip", Flat, Value::from_function(filters::zip)),
        ("dictsort", Sorted, Value::from_function(filters::dictsort)),
        ("min", Sorted, Value::from_function(filters::min)),
        ("max", Sorted, Value::from_function(filters::max)),
        ("sort", Sorted, Value::from_function(filters::sort)),
        ("groupby", Sorted, Value::from_function(filters::groupby)),
        ("unique", Sorted, Value::from_function(filters::unique)),
    ];
    for (name, reads, filter) in filters {
        environment.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = read(args, reads)?;
            flat(&filter.call(state, &args)?)
        });
    }
    let larger: [(&str, Check, Value); 6] = [
        ("replace", replaced, Value::from_function(filters::replace)),
        ("join", joined, Value::from_function(filters::join)),
        ("indent", indented, Value::from_function(filters::indent)),
        ("batch", filled, Value::from_function(filters::batch)),
        ("slice", filled, Value::from_function(filters::slice)),
        ("sum", summed, Value::from_function(filters::sum)),
    ];
    for (name, check, filter) in larger {
        environment.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = read(args, Deep)?;
            check(&args)?;
            flat(&filter.call(state, &args)?)
        });
    }
    environment.add_filter("format", |format: Value, args: Rest<ValueOrKwargs>| {
        let args = read(args, Deep)?;
        let text = format.as_str().ok_or_else(|| refused("`format` is of texts"))?;
        match args.as_slice() {
            [named] if named.is_kwargs() => python::percent(text, named),
            _ => python::percent(text, &Value::from(Tuple::from(args))),
        }
    });
    environment.add_filter("tojson", |value: Value, options: Rest<ValueOrKwargs>| python::tojson(&value, options));
}

/// A filter's value and arguments, counted.
fn read(args: Rest<ValueOrKwargs>, reads: Reads) -> Result<Vec<Value>, Error> {
    let mut args = args.into_values();
    for arg in &mut args {
        if !arg.is_kwargs() {
            *arg = flat(arg)?;
        }
        match reads {
            Reads::Flat => {}
            Reads::Deep => deep(arg).map(|_| ())?,
            Reads::Sorted => {
                let bytes = deep(arg)?;
                // Sorting compares each item with some others.
                take(bytes.saturating_mul(arg.len().unwrap_or(1).checked_ilog2().unwrap_or(0) as usize))?;
            }
        }
    }
    Ok(args)
}

fn install_tests(environment: &mut Environment<'static>) {
    use minijinja::tests;
    let compare = [
        (&["eq", "equalto", "=="][..], Value::from_function(tests::is_eq)),
        (&["ne", "!="], Value::from_function(tests::is_ne)),
        (&["lt", "lessthan", "<"], Value::from_function(tests::is_lt)),
        (&["le", "<="], Value::from_function(tests::is_le)),
        (&["gt", "greaterthan", ">"], Value::from_function(tests::is_gt)),
        (&["ge", ">="], Value::from_function(tests::is_ge)),
        (&["in"], Value::from_function(tests::is_in)),
        (&["sameas"], Value::from_function(tests::is_sameas)),
        (&["startingwith"], Value::from_function(tests::is_startingwith)),
        (&["endingwith"], Value::from_function(tests::is_endingwith)),
        (&["lower"], Value::from_function(tests::is_lower)),
        (&["upper"], Value::from_function(tests::is_upper)),
    ];
    for (names, test) in compare {
        for name in names {
            let test = test.clone();
            environment.add_test(*name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
                let args = read(args, Reads::Deep)?;
                Ok::<_, Error>(test.call(state, &args)?.is_true())
            });
        }
    }
}

/// Counts a value's own length. A lazy sequence becomes a list, so that none is evaluated twice and none is
/// made of others without end.
fn flat(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => take(value.as_str().map_or(0, str::len) + 1)?,
        ValueKind::Bytes | ValueKind::Map => take(value.len().unwrap_or(0) + 1)?,
        ValueKind::Seq | ValueKind::Iterable => {
            let is_list = value.is_tuple() || value.downcast_object_ref::<Vec<Value>>().is_some();
            if !is_list {
                let mut items = Vec::new();
                for item in value.try_iter()?.checked() {
                    take(VALUE_BYTES as usize)?;
                    items.push(item?);
                }
                return Ok(Value::from(items));
            }
            take(value.len().unwrap_or(0) + 1)?;
        }
        _ => take(1)?,
    }
    Ok(value.clone())
}

/// Counts a value with everything in it. Returns what it counted.
fn deep(value: &Value) -> Result<usize, Error> {
    walk(value, 0, false)
}

/// As [`deep`]; refuses what is no data, because a namespace that holds itself is never freed.
fn data(value: &Value) -> Result<(), Error> {
    walk(value, 0, true).map(|_| ())
}

fn walk(value: &Value, depth: usize, only_data: bool) -> Result<usize, Error> {
    if depth > DEPTH_MAX {
        return Err(refused(format!("more than {DEPTH_MAX} lists and maps in each other")));
    }
    let own = VALUE_BYTES as usize + value.as_str().map_or(0, str::len);
    take(own)?;
    let mut all = own;
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()?.checked() {
                all = all.saturating_add(walk(&item?, depth + 1, only_data)?);
            }
        }
        ValueKind::Map => {
            if only_data && has_state(value) {
                return Err(refused("only data can be stored in a namespace"));
            }
            for (key, item) in value.as_object().and_then(|map| map.try_iter_pairs()).into_iter().flatten() {
                all = all.saturating_add(walk(&key, depth + 1, only_data)?);
                all = all.saturating_add(walk(&item, depth + 1, only_data)?);
            }
        }
        ValueKind::Plain if only_data => return Err(refused("only data can be stored in a namespace")),
        _ => {}
    }
    Ok(all)
}

/// Whether a map is a namespace, a macro or a loop. Other crates cannot name their types.
fn has_state(value: &Value) -> bool {
    let name = value.as_object().map_or("", |object| object.type_name());
    name.contains("::vm::") || name.contains("namespace_object")
}

/// Appends a value as Python's `str` prints it.
fn push_text(to: &mut String, value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        take(text.len() + 1)?;
        to.push_str(text);
        return Ok(());
    }
    deep(value)?;
    to.push_str(&value.to_string());
    Ok(())
}

/// Prints a value between `{{` and `}}`.
fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => take(text.len() + 1)?,
        None => deep(value).map(|_| ())?,
    }
    minijinja::escape_formatter(out, state, value)
}

fn fold(values: &[Value], apply: fn(&Value, &Value) -> Result<Value, Error>) -> Result<Value, Error> {
    let mut values = values.iter();
    let first = values.next().map_or(Ok(Value::UNDEFINED), flat)?;
    values.try_fold(first, |left, right| apply(&left, &flat(right)?))
}

static OPERATORS: LazyLock<Environment<'static>> = LazyLock::new(Environment::new);
static ADD: LazyLock<Expression<'static, 'static>> = LazyLock::new(|| operator("a + b"));
static MUL: LazyLock<Expression<'static, 'static>> = LazyLock::new(|| operator("a * b"));
static REM: LazyLock<Expression<'static, 'static>> = LazyLock::new(|| operator("a % b"));

fn operator(text: &'static str) -> Expression<'static, 'static> {
    OPERATORS.compile_expression(text).expect("the expression is valid")
}

fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        take(left.len() + right.len())?;
        return Ok(Value::from([left, right].concat()));
    }
    flat(&ADD.eval(context! { a, b })?)
}

fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    let items = |value: &Value| match value.kind() {
        ValueKind::String => value.as_str().map(str::len),
        ValueKind::Bytes => value.len(),
        ValueKind::Seq | ValueKind::Iterable => value.len().map(|len| len.saturating_mul(VALUE_BYTES as usize)),
        _ => None,
    };
    if let Some((len, times)) = items(a).map(|len| (len, b)).or_else(|| items(b).map(|len| (len, a))) {
        let times = times.as_i64().map_or(0, |times| usize::try_from(times).unwrap_or(0));
        take(len.saturating_mul(times))?;
    }
    flat(&MUL.eval(context! { a, b })?)
}

fn rem(a: &Value, b: &Value) -> Result<Value, Error> {
    match a.as_str() {
        Some(format) => python::percent(format, b),
        None => Ok(REM.eval(context! { a, b })?),
    }
}

/// An argument of a filter, by position or by name.
fn arg(args: &[Value], at: usize, name: &str) -> Option<Value> {
    let positional = args.get(at).filter(|value| !value.is_kwargs()).cloned();
    positional
        .or_else(|| args.last().filter(|last| last.is_kwargs())?.get_attr(name).ok())
        .filter(|v| !v.is_undefined())
}

fn text_of(value: Option<&Value>) -> String {
    value.map(Value::to_string).unwrap_or_default()
}

fn replaced(args: &[Value]) -> Result<(), Error> {
    let (text, from, to) = (text_of(args.first()), text_of(args.get(1)), text_of(args.get(2)));
    take(text.len().saturating_add(text.matches(from.as_str()).count().saturating_mul(to.len())))
}

fn joined(args: &[Value]) -> Result<(), Error> {
    let items = args.first().and_then(Value::len).unwrap_or(0);
    take(items.saturating_mul(text_of(args.get(1).filter(|between| !between.is_kwargs())).len()))
}

fn indented(args: &[Value]) -> Result<(), Error> {
    let lines = text_of(args.first()).lines().count() + 1;
    let width = arg(args, 1, "width").map_or(4, |width| width.as_usize().unwrap_or(usize::MAX));
    take(lines.saturating_mul(width))
}

fn filled(args: &[Value]) -> Result<(), Error> {
    let count = args.get(1).and_then(Value::as_usize).unwrap_or(0);
    take(count.saturating_mul(VALUE_BYTES as usize))
}

/// A sum of texts or lists copies its beginning for each item.
fn summed(args: &[Value]) -> Result<(), Error> {
    let Some(items) = args.first() else { return Ok(()) };
    take(deep(items)?.saturating_mul(items.len().unwrap_or(0)) / VALUE_BYTES as usize)
}

/// Python's methods of texts, lists and maps.
fn method(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    flat(value)?;
    args.iter().try_for_each(|arg| deep(arg).map(|_| ()))?;
    if let Some(text) = value.as_str() {
        match method {
            "replace" => {
                let count = args.first().and_then(Value::as_str).map_or(0, |from| text.matches(from).count());
                take(count.saturating_mul(args.get(1).and_then(Value::as_str).map_or(0, str::len)))?;
            }
            "join" => take(args.first().and_then(Value::len).unwrap_or(0).saturating_mul(text.len()))?,
            "format" => check_fields(text, args)?,
            // Each piece is a value of its own.
            "split" | "splitlines" => take(text.len().saturating_mul(4))?,
            _ => {}
        }
    } else if matches!(method, "count" | "index") {
        deep(value)?;
    }
    flat(&pycompat::unknown_method_callback(state, value, method, args)?)
}

/// `str.format` writes its arguments as often and as wide as the text says.
fn check_fields(text: &str, args: &[Value]) -> Result<(), Error> {
    let (mut open, mut fields) = (0_usize, 0_usize);
    for c in text.replace("{{", "").replace("}}", "").chars() {
        match c {
            '{' => {
                (open, fields) = (open + 1, fields + 1);
                if open > 1 {
                    return Err(refused("`format`: a field within a field is not supported"));
                }
            }
            '}' => open = open.saturating_sub(1),
            _ => {}
        }
    }
    let widest = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let widest = widest.map(|digits| digits.parse::<usize>().unwrap_or(usize::MAX)).max().unwrap_or(0);
    if widest > WIDTH_MAX {
        return Err(refused(format!("`format`: a width of {widest}; at most {WIDTH_MAX}")));
    }
    let mut all = widest;
    for arg in args {
        all = all.saturating_add(deep(arg)?);
    }
    take(fields.saturating_mul(all))
}
