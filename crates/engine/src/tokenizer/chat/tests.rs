//! What templates render, and that every render ends soon and in bounded memory.

use super::*;
use std::time::Duration;

fn message(role: &str, content: &str) -> ChatMessage {
    ChatMessage { role: role.to_owned(), content: content.to_owned() }
}

fn render(chat: &ChatTemplate, messages: &[ChatMessage]) -> Result<String, String> {
    chat.render(&messages.to_vec().into())
}

fn parse(text: &str) -> Result<ChatTemplate, Error> {
    ChatTemplate::new(text, "<s>".to_owned(), "</s>".to_owned(), Clock::stopped())
}

fn template(text: &str) -> ChatTemplate {
    parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The value of an expression.
fn value(expression: &str, messages: &[ChatMessage]) -> Result<String, String> {
    render(&template(&format!("{{{{ {expression} }}}}")), messages)
}

#[test]
fn templates_access_messages_tokens_and_python_methods() {
    let chat = template(
        "{{ bos_token }}{% for m in messages %}\n  {% if m.content.startswith('x') %}\n!{% endif %}\n\
         {{ m['role'].upper() + ': ' + m.content.strip() }}{{ eos_token }}\n{% endfor %}\n\
         {% if add_generation_prompt and not tools %}A:{% endif %}",
    );
    let rendered = render(&chat, &[message("user", " hi "), message("assistant", "x")]).unwrap();
    assert_eq!(rendered, "<s>USER: hi</s>\n!ASSISTANT: x</s>\nA:");
}

#[test]
fn a_template_may_refuse_messages() {
    let chat = template("{{ raise_exception('roles must alternate') }}");
    assert_eq!(render(&chat, &[message("user", "hi")]).unwrap_err(), "roles must alternate");
    assert!(parse("{% if %}").is_err());
}

/// Each of these made the server allocate without end, run without end, or overflow its stack.
#[test]
fn every_template_ends_soon_and_in_bounded_memory() {
    let grown = [
        // Texts that double.
        "ns.x = ns.x ~ ns.x",
        "ns.x = ns.x + ns.x",
        "ns.x = ns.x * 2",
        "ns.x = '%s%s' % (ns.x, ns.x)",
        "ns.x = '%s%s' | format(ns.x, ns.x)",
        "ns.x = '{}{}'.format(ns.x, ns.x)",
        "ns.x = [ns.x, ns.x] | join",
        "ns.x = ns.x.join([ns.x, ns.x, ns.x])",
        "ns.x = ns.x | replace('a', ns.x)",
        "ns.x = ns.x | replace('', ns.x)",
        "ns.x = ns.x.replace('', ns.x)",
        "ns.x = [ns.x, ns.x] | string",
        "ns.x = [ns.x, ns.x] | tojson",
        "ns.x = ns.x | indent(ns.x | length, true)",
        // Lists that double, and lists of which each item is there twice.
        "ns.l = ns.l + ns.l",
        "ns.l = ns.l * 2",
        "ns.l = [ns.l, ns.l]",
        "ns.l = {'a': ns.l, 'b': ns.l}",
        "ns.l = (ns.l | batch(1) | list) + ns.l",
        "ns.l = ([ns.l, ns.l] | sum(start=[]))",
    ];
    let head = "{% set ns = namespace(x='ab', l=[1]) %}{% for i in range(200) %}{% set ";
    let grown = grown.map(|step| format!("{head}{step} %}}{{% endfor %}}{{{{ ns.x }}}}{{{{ ns.l }}}}"));
    // Nesting without end.
    let nested = [
        "[ns.x]",
        "{'a': ns.x}",
        "(ns.x,)",
        "ns.x | batch(1) | list",
        "namespace(x=ns.x)",
        "dict(x=ns.x)",
        "[ns.x[0:]]",
    ];
    let head = "{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = ";
    let nested = nested.map(|step| format!("{head}{step} %}}{{% endfor %}}{{{{ ns.x }}}}"));
    let others = [
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(200) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}\
         {% set ns.x = y %}{% endfor %}",
        "{% macro f(s, n) %}{% if n %}{{ f(s + s, n - 1) }}{{ s + s }}{% endif %}{% endmacro %}{{ f('ab', 60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        // One large operation.
        "{{ 'ab' * 99999999 }}",
        "{{ ('ab' * 99999999) ~ ('ab' * 99999999) ~ ('ab' * 99999999) }}",
        "{{ 99999999999 * 'ab' }}",
        "{{ ([1] * 99999999) | length }}",
        "{{ (([1] * 9999) * 9999999) | join }}",
        "{{ 1 in (([0] * 99999) * 99999) }}",
        "{% for i in range(9999) %}{{ range(99999) | list | length }}{% endfor %}",
        "{{ [1] | tojson(indent=99999999999) }}",
        "{{ [[1]] | tojson(indent='ab' * 99999999) }}",
        "{{ 'a\nb' | indent(99999999999) }}",
        "{{ 'a\nb' | indent(width=99999999999) }}",
        "{{ [1] | batch(99999999999, 0) | list }}",
        "{{ [1] | slice(99999999999) | list }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ '%*d' % (99999999999, 1) }}",
        "{{ '%.99999999999f' % 1 }}",
        "{{ '%99999999999d' | format(1) }}",
        "{{ '{:99999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 99999999999) }}",
        "{{ '{:.99999}'.format(1.5) }}",
        "{{ strftime_now('%c' * 99999999) }}",
        "{{ raise_exception('ab' * 99999999) }}",
        // Values that contain themselves.
        "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.me = [ns] %}{{ ns }}",
        "{% set ns = namespace() %}{% macro m() %}{{ ns }}{% endmacro %}{% set ns.m = m %}",
    ];
    for text in grown.iter().chain(&nested).map(String::as_str).chain(others) {
        let why = render(&template(text), &[message("user", "hi")]).expect_err(text);
        assert!(why.chars().count() <= ERROR_CHARS_MAX, "{text}: {}", why.len());
    }
    let endless =
        "{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = ns.x[0:] | reverse %}{% endfor %}";
    assert_eq!(render(&template(&format!("{endless}{{{{ ns.x }}}}")), &[]).unwrap(), "[1]", "a copy is no deeper");
}

/// The compiler recurses over what a template nests.
#[test]
fn a_template_of_any_length_or_depth_is_parsed_or_refused() {
    for text in [
        format!("{{{{ messages{} }}}}", ".a".repeat(99_999)),
        format!("{{{{ 1{} }}}}", " - 1".repeat(99_999)),
        format!("{{{{ 'a'{} }}}}", " ~ 'a'".repeat(99_999)),
        format!("{{{{ 'a'{} }}}}", " | upper".repeat(99_999)),
        format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(50_000)),
        "{% if 1 %}".repeat(99_999),
        format!("{{{{ {} }}}}", "[".repeat(99_999)),
        "a".repeat(2 << 20),
        "{{ cenote_flat(1) }}".to_owned(),
    ] {
        assert!(parse(&text).is_err(), "{}", &text[..40.min(text.len())]);
    }
    // As long as a tag may be.
    assert_eq!(value(&format!("'a'{}", " ~ 'a'".repeat(900)), &[]).unwrap().len(), 901);
    assert_eq!(value(&format!("1{}", " - 1".repeat(900)), &[]).unwrap(), "-899");
    assert_eq!(value(&format!("'a'{}", " | upper".repeat(900)), &[]).unwrap(), "A");
    assert!(value(&format!("x{}", ".a".repeat(900)), &[]).is_err());
    let branches = format!("{{% if 0 %}}{}{{% else %}}b{{% endif %}}", "{% elif 0 %}".repeat(400));
    assert_eq!(render(&template(&branches), &[]).unwrap(), "b");
}

/// The budget grows with the messages.
#[test]
fn long_conversations_fit_the_bounds() {
    let turns: Vec<ChatMessage> = (0..2000).map(|at| message("user", &format!("{at} ").repeat(400))).collect();
    let chat = template(
        "{% set ns = namespace(last=0, all=[]) %}\
         {% for m in messages[::-1] %}{% if m.role == 'user' and not m.content.startswith('<') %}\
         {% set ns.last = ns.last + 1 %}{% endif %}{% endfor %}\
         {% for m in messages %}{% set content = m['content'] | trim %}{% if '</think>' in content %}{% endif %}\
         {{ '<|' + m['role'] + '|>' + content.split('</s>')[-1].strip() + eos_token }}{{ m | tojson }}\
         {% if loop.last or messages[loop.index0 + 1].role != 'user' %}!{% endif %}{% endfor %}{{ ns.last }}",
    );
    let rendered = render(&chat, &turns).unwrap();
    assert!(rendered.ends_with("!2000"));
    assert!(rendered.len() > 2 * turns.iter().map(|turn| turn.content.len()).sum::<usize>());
}

/// Rewritten templates render as minijinja renders the original ones.
#[test]
fn bounds_do_not_affect_rendering() {
    let plain = |text: &str, messages: &[ChatMessage]| {
        let mut environment = Environment::new();
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().unwrap());
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_template(NAME, text).unwrap();
        let one = |m: &ChatMessage| context! { role => m.role.as_str(), content => m.content.as_str() };
        let messages: Vec<Value> = messages.iter().map(one).collect();
        let root = context! {
            messages,
            bos_token => "<s>",
            eos_token => "</s>",
            add_generation_prompt => true,
            tools => (),
            documents => (),
        };
        environment.get_template(NAME).unwrap().render(root).map_err(|error| error.to_string())
    };
    let turns =
        [message("system", " Be \"brief\" \\ {{ x }} \n"), message("user", "a,b é\n"), message("assistant", "x")];
    let templates: Vec<&str> =
        include_str!("templates.txt").split("\n----\n").filter(|text| !text.is_empty()).collect();
    assert!(templates.len() > 25, "{}", templates.len());
    let different = templates.into_iter().filter_map(|text| {
        let (bounded, plain) = (parse(text).map(|chat| render(&chat, &turns)), plain(text, &turns));
        let is_same = plain.is_ok() && bounded.as_ref().is_ok_and(|bounded| *bounded == plain);
        (!is_same).then(|| format!("{text}\n{plain:?}\n{bounded:?}"))
    });
    let different: Vec<String> = different.collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// Expected values are of CPython 3.11.
#[test]
fn tojson_is_python_s() {
    let turns = [message("user", "Is a < b & c > d? It's {\"k\": 1} é\u{1f600}\u{7}\u{7f}\n")];
    let json =
        "[{\"role\": \"user\", \"content\": \"Is a < b & c > d? It's {\\\"k\\\": 1} é\u{1f600}\\u0007\u{7f}\\n\"}]";
    for (expression, json) in [
        ("messages", json),
        ("{'b': [1, 2], 'a': none, 'c': true}", r#"{"b": [1, 2], "a": null, "c": true}"#),
        ("(1, 'a')", r#"[1, "a"]"#),
        ("{1: 2, none: 4, 1.5: 5}", r#"{"1": 2, "null": 4, "1.5": 5}"#),
        ("{true: 3}", r#"{"true": 3}"#),
        ("[1.0, 0.1, 1e16, 1e-5, 123456789012345680.0]", "[1.0, 0.1, 1e+16, 1e-05, 1.2345678901234568e+17]"),
        ("[12345678901234567890, -3, 1e300 * 10]", "[12345678901234567890, -3, 1e+301]"),
    ] {
        assert_eq!(value(&format!("{expression} | tojson"), &turns).as_deref(), Ok(json), "{expression}");
    }
    for (expression, json) in [
        ("[1, {'a': 2}, [], {}] | tojson(indent=2)", "[\n  1,\n  {\n    \"a\": 2\n  },\n  [],\n  {}\n]"),
        ("[1] | tojson(indent='\\t')", "[\n\t1\n]"),
        ("[1, 2] | tojson(indent=0)", "[\n1,\n2\n]"),
        ("[1, 2] | tojson(indent=-3)", "[\n1,\n2\n]"),
        ("[1, 2] | tojson(indent=true)", "[\n 1,\n 2\n]"),
        ("[1, 2] | tojson(indent=none)", "[1, 2]"),
        ("[1, 2] | tojson(false, 1)", "[\n 1,\n 2\n]"),
        ("[1, {'a': 2}] | tojson(separators=(',', ':'))", r#"[1,{"a":2}]"#),
        ("[1, {'a': 2}] | tojson(indent=1, separators=(';', '='))", "[\n 1;\n {\n  \"a\"=2\n }\n]"),
        ("{'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true)", r#"{"a": {"c": 2, "d": 1}, "b": 1}"#),
        ("'é' | tojson(true)", "\"\\u00e9\""),
        ("'\u{1f600}' | tojson(ensure_ascii=true)", "\"\\ud83d\\ude00\""),
    ] {
        assert_eq!(value(expression, &turns).as_deref(), Ok(json), "{expression}");
    }
    for wrong in [
        "x | tojson",
        "1 | tojson(indnt=2)",
        "1 | tojson(separators=':')",
        "{(1, 2): 3} | tojson",
        "1 | tojson(indent=1.5)",
        "range | tojson",
    ] {
        assert!(value(wrong, &turns).is_err(), "{wrong}");
    }
}

/// Expected values are of CPython 3.11.
#[test]
fn the_percent_operator_is_python_s() {
    for (expression, text) in [
        ("'%s says' % messages[0].role", "user says"),
        ("'%s %s' % ('a', 1)", "a 1"),
        ("'%s' % [1, 'a', none, true, 1.0]", "[1, 'a', None, True, 1.0]"),
        ("'%s' % {'k': \"it's\"}", "{'k': \"it's\"}"),
        ("'%r' % 'a\\nb'", "'a\\nb'"),
        ("'%a' % 'é'", "'\\xe9'"),
        ("'%(b)s-%(a)03d' % {'a': 5, 'b': 'x'}", "x-005"),
        ("'%5d|%-5d|%05d|%+d|% d' % (42, 42, 42, 42, 42)", "   42|42   |00042|+42| 42"),
        ("'%d %i %u' % (3.9, -3.9, 7)", "3 -3 7"),
        ("'%x %X %#x %o %#o' % (255, 255, 255, 8, 8)", "ff FF 0xff 10 0o10"),
        ("'%.3d|%-#8x|%#08x' % (7, 255, 255)", "007|0xff    |0x0000ff"),
        ("'%f %.2f %8.3f %-8.1f|' % (1, 2.345, 3.14159, 2.25)", "1.000000 2.35    3.142 2.2     |"),
        ("'%e %.1e %E' % (12345.678, 0.00012, 1e300)", "1.234568e+04 1.2e-04 1.000000E+300"),
        ("'%g %g %g %g %#g' % (100000, 1000000, 0.0001, 0.00001, 1)", "100000 1e+06 0.0001 1e-05 1.00000"),
        ("'%c%c' % ('x', 233)", "xé"),
        ("'%5.2s|%-4s|' % ('abc', 'é')", "   ab|é   |"),
        ("'%*d|%-*d|%.*f' % (5, 1, 4, 2, 1, 2.55)", "    1|2   |2.5"),
        ("'100%%' % ()", "100%"),
        ("'%s' % ''", ""),
        ("'a %s' % (('b', 1),)", "a ('b', 1)"),
        ("'%s and %s' | format('a', 2)", "a and 2"),
        ("'%(n)s' | format(n=1)", "1"),
        ("'no' % {'a': 1}", "no"),
        ("'%d' % true", "1"),
        ("7 % 4", "3"),
        ("-7 % 4", "1"),
    ] {
        assert_eq!(value(expression, &[message("user", "")]).as_deref(), Ok(text), "{expression}");
    }
    for wrong in [
        "'%s %s' % 'a'",
        "'%s' % (1, 2)",
        "'%d' % 'a'",
        "'%y' % 1",
        "'%' % 1",
        "'%(a)s' % {'b': 1}",
        "'x' % 1",
        "'%c' % 'ab'",
        "'%x' % 1.5",
    ] {
        assert!(value(wrong, &[]).is_err(), "{wrong}");
    }
}

#[test]
fn generation_tags_do_not_affect_rendering() {
    let chat = template("a {%- generation -%} b {%- endgeneration %} c");
    assert_eq!(render(&chat, &[]).unwrap(), "ab c");
}

#[test]
fn a_template_reads_the_date_of_its_clock() {
    let time = cenote_base::testing::ManualTime::start();
    let text = "{{ strftime_now('%d %b %Y') }}";
    let chat = ChatTemplate::new(text, String::new(), String::new(), time.clock()).unwrap();
    let date = |clock: Clock| bounds::budgeted(0, || python::strftime("%d %b %Y", clock.unix()).unwrap());
    let today = date(time.clock());
    assert_eq!(render(&chat, &[]).unwrap(), today);
    time.advance(Duration::from_secs(86_400));
    assert_ne!(date(time.clock()), today);
    assert_eq!(render(&chat, &[]).unwrap(), date(time.clock()));
}

#[test]
fn several_templates_need_a_default() {
    let dir = tempfile::tempdir().unwrap();
    let load = |json: &str| {
        let source: Source = serde_json::from_str(json).unwrap();
        ChatTemplate::load(dir.path(), Some(source), String::new(), String::new(), Clock::stopped())
    };
    let two = r#"[{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]"#;
    assert_eq!(render(&load(two).unwrap().unwrap(), &[]).unwrap(), "d");
    assert!(load(r#"[{"name": "a", "template": "a"}, {"name": "b", "template": "b"}]"#).is_err());
    std::fs::write(dir.path().join("chat_template.jinja"), "file").unwrap();
    assert_eq!(render(&load(two).unwrap().unwrap(), &[]).unwrap(), "file");
}

#[test]
fn a_final_message_may_stay_open() {
    let chat = template(
        "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}\
         {% if add_generation_prompt %}<assistant>{% endif %}",
    );
    let rendered = |end: ChatEnd, last: &str| {
        let messages = vec![message("user", "The sea is"), message("assistant", last)];
        chat.render(&Conversation { messages, end, add_special_tokens: false }).unwrap()
    };
    assert_eq!(rendered(ChatEnd::Answer, "blue"), "<user>The sea is</s><assistant>blue</s><assistant>");
    assert_eq!(rendered(ChatEnd::Turn, "blue"), "<user>The sea is</s><assistant>blue</s>");
    assert_eq!(rendered(ChatEnd::FinalMessage, "The sea is"), "<user>The sea is</s><assistant>The sea is");
    assert_eq!(rendered(ChatEnd::FinalMessage, " blue "), "<user>The sea is</s><assistant>blue");
    let end = ChatEnd::FinalMessage;
    let open = Conversation { messages: vec![message("user", " a b ")], end, add_special_tokens: false };
    assert_eq!(template("{% for m in messages %}<{{ m.content }}>{% endfor %}").render(&open).unwrap(), "< a b ");
    assert!(template("nothing").render(&open).unwrap_err().contains("final message"));
}
