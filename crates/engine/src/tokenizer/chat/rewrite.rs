//! Writes a template anew, with a call of a bounded function in place of each operation of which the result
//! may be larger than its operands.
//!
//! minijinja bounds the number of instructions, but one instruction may double a text, or copy a list of
//! any length. So `a ~ b` becomes `cenote_concat(a, b)`, a text between tags becomes an expression, and all
//! of them take their work from the budget of `bounds`. The new template also has no constants that the
//! compiler would compute in advance.

use super::bounds::name;
use minijinja::machinery::ast::{
    BinOp, BinOpKind, Call, CallArg, CompareOpKind, Expr, Filter, ForLoop, IfCond, Macro, Stmt, UnaryOpKind,
};
use minijinja::machinery::{Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use std::fmt::Write;

/// Most bytes of a template. Those of known models have at most some 50 KiB.
const TEMPLATE_BYTES_MAX: usize = 1 << 20;
/// Most tokens of a tag. The parser nests operators as deeply as there are tokens, and the compiler recurses.
const TAG_TOKENS_MAX: usize = 2000;
/// Most `elif` of a template. The parser recurses for each.
const BRANCHES_MAX: usize = 500;

/// The bounded form of `source`, for an environment with `bounds::install`.
pub(super) fn bounded(source: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    check_size(source, syntax)?;
    let Stmt::Template(template) = parse(source, "chat_template", syntax.clone())? else {
        return Err(unsupported("a template without a root"));
    };
    let mut writer = Writer { out: String::with_capacity(source.len() * 2) };
    writer.body(&template.children)?;
    Ok(writer.out)
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::SyntaxError, format!("{what} is not supported in chat templates"))
}

/// Refuses what would exhaust the stack of the parser or the compiler.
fn check_size(source: &str, syntax: &SyntaxConfig) -> Result<(), Error> {
    let too = |what: String| Err(Error::new(ErrorKind::SyntaxError, what));
    if source.len() > TEMPLATE_BYTES_MAX {
        return too(format!("a template of {} bytes; at most {TEMPLATE_BYTES_MAX}", source.len()));
    }
    let mut tokens = 0;
    let mut branches = 0;
    let mut begins = false;
    for token in tokenize(source, false, syntax.clone()) {
        match token?.0 {
            Token::VariableStart | Token::BlockStart => {
                tokens = 0;
                begins = true;
                continue;
            }
            Token::Ident(ident) if ident.starts_with(name::PREFIX) => {
                return too(format!("the name `{ident}` is kept for the server"));
            }
            Token::Ident("elif") if begins => branches += 1,
            _ => {}
        }
        begins = false;
        tokens += 1;
        if tokens > TAG_TOKENS_MAX {
            return too(format!("a tag of more than {TAG_TOKENS_MAX} tokens"));
        }
        if branches > BRANCHES_MAX {
            return too(format!("more than {BRANCHES_MAX} `elif`"));
        }
    }
    Ok(())
}

struct Writer {
    out: String,
}

impl Writer {
    fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn body(&mut self, body: &[Stmt<'_>]) -> Result<(), Error> {
        body.iter().try_for_each(|statement| self.statement(statement))
    }

    /// `{% tag %} body {% end %}`
    fn block(&mut self, tag: &str, body: &[Stmt<'_>], end: &str) -> Result<(), Error> {
        write!(self.out, "{{% {tag} %}}").map_err(Error::from)?;
        self.body(body)?;
        write!(self.out, "{{% {end} %}}").map_err(Error::from)
    }

    fn statement(&mut self, statement: &Stmt<'_>) -> Result<(), Error> {
        match statement {
            Stmt::Template(template) => self.body(&template.children),
            Stmt::EmitExpr(emitted) => {
                let text = expr(&emitted.expr)?;
                self.put(&format!("{{{{ {text} }}}}"));
                Ok(())
            }
            Stmt::EmitRaw(raw) => {
                if !raw.raw.is_empty() {
                    self.put(&format!("{{{{ {} }}}}", quoted(raw.raw)));
                }
                Ok(())
            }
            Stmt::ForLoop(looped) => self.for_loop(looped),
            Stmt::IfCond(condition) => self.condition(condition),
            Stmt::WithBlock(with) => {
                let each = with.assignments.iter().map(|(to, value)| Ok(format!("{} = {}", target(to)?, expr(value)?)));
                let each = each.collect::<Result<Vec<_>, Error>>()?;
                self.block(&format!("with {}", each.join(", ")), &with.body, "endwith")
            }
            Stmt::Set(set) => {
                // Only what is stored in a namespace outlives its block, so only there may nesting grow.
                let value = match &set.target {
                    Expr::GetAttr(_) => call(name::DATA, &[expr(&set.expr)?]),
                    _ => expr(&set.expr)?,
                };
                let to = target(&set.target)?;
                self.put(&format!("{{% set {to} = {value} %}}"));
                Ok(())
            }
            Stmt::SetBlock(set) => {
                let to = target(&set.target)?;
                let filter = set.filter.as_ref().map(filters).transpose()?;
                let tag = filter.map_or(format!("set {to}"), |filter| format!("set {to} | {filter}"));
                self.block(&tag, &set.body, "endset")
            }
            Stmt::FilterBlock(block) => {
                self.block(&format!("filter {}", filters(&block.filter)?), &block.body, "endfilter")
            }
            Stmt::Block(block) => self.block(&format!("block {}", block.name), &block.body, "endblock"),
            Stmt::Macro(declared) => {
                let tag = format!("macro {}({})", declared.name, parameters(declared)?);
                self.block(&tag, &declared.body, "endmacro")
            }
            Stmt::CallBlock(block) => {
                let tag = format!("call({}) {}", parameters(&block.macro_decl)?, called(&block.call)?);
                self.block(&tag, &block.macro_decl.body, "endcall")
            }
            Stmt::Do(done) => {
                let call = called(&done.call)?;
                self.put(&format!("{{% do {call} %}}"));
                Ok(())
            }
            Stmt::Continue(_) => {
                self.put("{% continue %}");
                Ok(())
            }
            Stmt::Break(_) => {
                self.put("{% break %}");
                Ok(())
            }
            Stmt::AutoEscape(_) => Err(unsupported("`autoescape`")),
            Stmt::Import(_) | Stmt::FromImport(_) => Err(unsupported("`import`")),
            Stmt::Extends(_) => Err(unsupported("`extends`")),
            Stmt::Include(_) => Err(unsupported("`include`")),
        }
    }

    fn for_loop(&mut self, looped: &ForLoop<'_>) -> Result<(), Error> {
        let mut tag = format!("for {} in {}", target(&looped.target)?, flat(&looped.iter)?);
        if let Some(filter) = &looped.filter_expr {
            tag += &format!(" if {}", expr(filter)?);
        }
        if looped.recursive {
            tag += " recursive";
        }
        self.put(&format!("{{% {tag} %}}"));
        self.body(&looped.body)?;
        if !looped.else_body.is_empty() {
            self.put("{% else %}");
            self.body(&looped.else_body)?;
        }
        self.put("{% endfor %}");
        Ok(())
    }

    fn condition(&mut self, condition: &IfCond<'_>) -> Result<(), Error> {
        let mut condition = condition;
        let mut word = "if";
        loop {
            self.put(&format!("{{% {word} {} %}}", operand(&condition.expr)?));
            self.body(&condition.true_body)?;
            match condition.false_body.as_slice() {
                // As `elif`, a chain of any length nests no deeper.
                [Stmt::IfCond(next)] => (condition, word) = (next, "elif"),
                [] => break,
                body => {
                    self.put("{% else %}");
                    self.body(body)?;
                    break;
                }
            }
        }
        self.put("{% endif %}");
        Ok(())
    }
}

/// A text as a constant of the template language.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn call(function: &str, args: &[String]) -> String {
    format!("{function}({})", args.join(", "))
}

/// An expression that a guard need not see.
const fn is_small(expr: &Expr<'_>) -> bool {
    matches!(expr, Expr::Const(_) | Expr::Compare(_) | Expr::Test(_) | Expr::UnaryOp(_))
}

/// The value with its own length counted; a lazy sequence becomes a list.
fn flat(of: &Expr<'_>) -> Result<String, Error> {
    guarded(name::FLAT, of)
}

/// The value with everything in it counted.
fn deep(of: &Expr<'_>) -> Result<String, Error> {
    guarded(name::DEEP, of)
}

fn guarded(guard: &str, of: &Expr<'_>) -> Result<String, Error> {
    let text = expr(of)?;
    Ok(if is_small(of) { text } else { call(guard, &[text]) })
}

/// What is assigned to.
fn target(to: &Expr<'_>) -> Result<String, Error> {
    let several = |items: &[Expr<'_>]| {
        let each = items.iter().map(|item| match item {
            Expr::List(_) | Expr::Tuple(_) => Ok(format!("({})", target(item)?)),
            item => target(item),
        });
        let each: Vec<String> = each.collect::<Result<_, Error>>()?;
        Ok(if let [one] = each.as_slice() { format!("{one},") } else { each.join(", ") })
    };
    match to {
        Expr::Var(var) => Ok(var.id.to_owned()),
        Expr::GetAttr(attr) => Ok(format!("{}.{}", target(&attr.expr)?, attr.name)),
        Expr::List(list) => several(&list.items),
        Expr::Tuple(tuple) => several(&tuple.items),
        _ => Err(unsupported("an assignment to an expression")),
    }
}

/// A macro's parameters; the last ones have defaults.
fn parameters(of: &Macro<'_>) -> Result<String, Error> {
    let plain = of.args.len() - of.defaults.len();
    let each = of.args.iter().enumerate().map(|(at, arg)| match at.checked_sub(plain) {
        None => target(arg),
        Some(at) => Ok(format!("{} = {}", target(arg)?, expr(&of.defaults[at])?)),
    });
    Ok(each.collect::<Result<Vec<_>, Error>>()?.join(", "))
}

fn arguments(args: &[CallArg<'_>]) -> Result<String, Error> {
    let each = args.iter().map(|arg| match arg {
        CallArg::Pos(value) => flat(value),
        CallArg::Kwarg(name, value) => Ok(format!("{name}={}", flat(value)?)),
        CallArg::PosSplat(value) => Ok(format!("*{}", flat(value)?)),
        CallArg::KwargSplat(value) => Ok(format!("**{}", flat(value)?)),
    });
    Ok(each.collect::<Result<Vec<_>, Error>>()?.join(", "))
}

fn called(of: &Call<'_>) -> Result<String, Error> {
    Ok(format!("{}({})", primary(&of.expr)?, arguments(&of.args)?))
}

/// Filters of a block, which have no value before them.
fn filters(chain: &Expr<'_>) -> Result<String, Error> {
    let Expr::Filter(filter) = chain else { return Err(unsupported("a block filter that is none")) };
    let Filter { name, expr, args } = &**filter;
    let own = if args.is_empty() { (*name).to_owned() } else { format!("{name}({})", arguments(args)?) };
    Ok(match expr {
        Some(before) => format!("{} | {own}", filters(before)?),
        None => own,
    })
}

/// An expression before `.`, `[` or `(`.
fn primary(of: &Expr<'_>) -> Result<String, Error> {
    let text = expr(of)?;
    let is_bare = matches!(of, Expr::Var(_) | Expr::GetAttr(_) | Expr::GetItem(_) | Expr::Call(_));
    Ok(if is_bare { text } else { format!("({text})") })
}

/// An operand: in parentheses unless it binds more tightly than any operator.
fn operand(of: &Expr<'_>) -> Result<String, Error> {
    let text = expr(of)?;
    let is_loose = matches!(
        of,
        Expr::UnaryOp(_) | Expr::BinOp(_) | Expr::Compare(_) | Expr::IfExpr(_) | Expr::Filter(_) | Expr::Test(_)
    );
    Ok(if is_loose { format!("({text})") } else { text })
}

fn list(items: &[Expr<'_>]) -> Result<Vec<String>, Error> {
    items.iter().map(deep).collect()
}

fn expr(of: &Expr<'_>) -> Result<String, Error> {
    Ok(match of {
        Expr::Var(var) => var.id.to_owned(),
        Expr::Const(constant) => literal(&constant.value)?,
        Expr::Slice(slice) => {
            let part = |part: &Option<Expr<'_>>| part.as_ref().map_or(Ok(String::new()), operand);
            let (start, stop, step) = (part(&slice.start)?, part(&slice.stop)?, part(&slice.step)?);
            let step = if step.is_empty() { step } else { format!(":{step}") };
            format!("{}[{start}:{stop}{step}]", call(name::FLAT, &[expr(&slice.expr)?]))
        }
        Expr::UnaryOp(unary) => match unary.op {
            UnaryOpKind::Not => format!("not {}", operand(&unary.expr)?),
            UnaryOpKind::Neg => format!("-{}", operand(&unary.expr)?),
        },
        Expr::BinOp(binary) => binop(binary)?,
        Expr::Compare(compare) => {
            let mut text = compared(&compare.expr)?;
            for next in &compare.ops {
                text += &format!(" {} {}", comparison(next.op), compared(&next.expr)?);
            }
            text
        }
        Expr::IfExpr(choice) => {
            let (yes, test) = (operand(&choice.true_expr)?, operand(&choice.test_expr)?);
            match &choice.false_expr {
                Some(no) => format!("{yes} if {test} else {}", operand(no)?),
                None => format!("{yes} if {test}"),
            }
        }
        Expr::Filter(filter) => {
            let Some(before) = &filter.expr else { return Err(unsupported("a filter of nothing")) };
            let args = arguments(&filter.args)?;
            let before = if matches!(before, Expr::Filter(_)) { expr(before)? } else { operand(before)? };
            if args.is_empty() {
                format!("{before} | {}", filter.name)
            } else {
                format!("{before} | {}({args})", filter.name)
            }
        }
        Expr::Test(test) => {
            let args = arguments(&test.args)?;
            let before = operand(&test.expr)?;
            if args.is_empty() {
                format!("{before} is {}", test.name)
            } else {
                format!("{before} is {}({args})", test.name)
            }
        }
        Expr::GetAttr(attr) => format!("{}.{}", primary(&attr.expr)?, attr.name),
        Expr::GetItem(item) => format!("{}[{}]", primary(&item.expr)?, deep(&item.subscript_expr)?),
        Expr::Call(of) => called(of)?,
        Expr::List(items) => format!("[{}]", list(&items.items)?.join(", ")),
        Expr::Tuple(tuple) => match list(&tuple.items)?.as_slice() {
            [] => "()".to_owned(),
            [one] => format!("({one},)"),
            several => format!("({})", several.join(", ")),
        },
        Expr::Map(map) => {
            let each =
                map.keys.iter().zip(&map.values).map(|(key, value)| Ok(format!("{}: {}", deep(key)?, deep(value)?)));
            // The spaces keep two braces from ending the tag.
            format!("{{ {} }}", each.collect::<Result<Vec<_>, Error>>()?.join(", "))
        }
    })
}

/// An operand of a comparison, which reads all of it.
fn compared(of: &Expr<'_>) -> Result<String, Error> {
    let text = deep(of)?;
    Ok(if matches!(of, Expr::Compare(_) | Expr::Test(_) | Expr::UnaryOp(_)) { format!("({text})") } else { text })
}

const fn comparison(op: CompareOpKind) -> &'static str {
    match op {
        CompareOpKind::Eq => "==",
        CompareOpKind::Ne => "!=",
        CompareOpKind::Lt => "<",
        CompareOpKind::Lte => "<=",
        CompareOpKind::Gt => ">",
        CompareOpKind::Gte => ">=",
        CompareOpKind::In => "in",
        CompareOpKind::NotIn => "not in",
    }
}

fn binop(binary: &BinOp<'_>) -> Result<String, Error> {
    let compare = |op: &str| Ok(format!("{} {op} {}", compared(&binary.left)?, compared(&binary.right)?));
    match binary.op {
        BinOpKind::Concat => chain(binary, name::CONCAT),
        BinOpKind::Add => chain(binary, name::ADD),
        BinOpKind::Mul => chain(binary, name::MUL),
        BinOpKind::Rem => chain(binary, name::REM),
        BinOpKind::ScAnd => Ok(operands(binary)?.join(" and ")),
        BinOpKind::ScOr => Ok(operands(binary)?.join(" or ")),
        // These are of numbers alone.
        BinOpKind::Sub => Ok(operands(binary)?.join(" - ")),
        BinOpKind::Div => Ok(operands(binary)?.join(" / ")),
        BinOpKind::FloorDiv => Ok(operands(binary)?.join(" // ")),
        BinOpKind::Pow => Ok(format!("{} ** {}", operand(&binary.left)?, operand(&binary.right)?)),
        BinOpKind::Eq => compare("=="),
        BinOpKind::Ne => compare("!="),
        BinOpKind::Lt => compare("<"),
        BinOpKind::Lte => compare("<="),
        BinOpKind::Gt => compare(">"),
        BinOpKind::Gte => compare(">="),
        BinOpKind::In => compare("in"),
    }
}

/// The operands of a chain of one operator, which binds to the left. Written so, a long chain nests no deeper.
fn operands(binary: &BinOp<'_>) -> Result<Vec<String>, Error> {
    let mut all = vec![operand(&binary.right)?];
    let mut left = &binary.left;
    while let Expr::BinOp(next) = left
        && std::mem::discriminant(&next.op) == std::mem::discriminant(&binary.op)
    {
        all.push(operand(&next.right)?);
        left = &next.left;
    }
    all.push(operand(left)?);
    all.reverse();
    Ok(all)
}

fn chain(binary: &BinOp<'_>, function: &str) -> Result<String, Error> {
    Ok(call(function, &operands(binary)?))
}

fn literal(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::None => Ok("none".to_owned()),
        ValueKind::Bool => Ok(if value.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::String => Ok(quoted(value.as_str().unwrap_or_default())),
        ValueKind::Number => {
            let text = value.to_string();
            // A sign is an operator of its own.
            Ok(if text.starts_with('-') { format!("({text})") } else { text })
        }
        kind => Err(unsupported(&format!("a constant of kind {kind}"))),
    }
}
