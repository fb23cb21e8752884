"""Go's template language: statements, scopes, trims, fields, literals, and what is refused."""

import pytest

from corral.templates import TemplateFailed, TemplateRefused, execute, parse
from corral.templates.template_data import data_for

PROMPT = {
    "Input": "in put",
    "MessageIndex": 3,
    "Metadata": {"b": "2", "a": "1"},
    "Functions": [
        {"name": "one", "description": "First", "parameters": {"type": "object", "n": 2, "none": None}},
        {"name": "two", "strict": True},
    ],
}
CALLS = {
    "RoleName": "assistant",
    "FunctionCall": [{"index": 1, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


def rendered(template: str) -> str:
    return execute(parse(template), data_for("chat", PROMPT))


def of_message(template: str, **fields: object) -> str:
    return execute(parse(template), data_for("chat_message", {**CALLS, **fields}))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("", ""),
        ("plain { } }}", "plain { } }}"),
        ("<{{.Input}}>", "<in put>"),
        ("a \n {{- .Input -}} \n b", "ain putb"),
        ("a {{-3 -}} b", "a -3b"),
        ("{{/* a note */}}x{{- /* another */ -}} y", "xy"),
        ('{{"}}"}}{{`{{raw\\n}}`}}', "}}{{raw\\n}}"),
        ('{{"\\t\\x41\\u00e9\\U0001F642\\101\\""}}', '\tAé🙂A"'),
        ("{{'a'}} {{'\\n'}} {{'é'}}", "97 10 233"),
        ("{{0x1F}} {{0b11}} {{0o17}} {{017}} {{1_000}} {{+5}}", "31 3 15 15 1000 5"),
        ("{{1.5}} {{2.0}} {{1e6}} {{1e5}} {{.5}} {{1e-7}}", "1.5 2 1e+06 100000 0.5 1e-07"),
        ("{{true}} {{false}}", "true false"),
        ("{{if .Input}}y{{else}}n{{end}}", "y"),
        ("{{if .Instruction}}a{{else if .MessageIndex}}b{{else}}c{{end}}", "b"),
        ("{{if .Instruction}}a{{else if .SystemPrompt}}b{{else}}c{{end}}", "c"),
        ("{{with .Instruction}}a{{else with .Input}}{{.}}{{else}}c{{end}}", "in put"),
        ("{{with .Input}}{{.}} {{$.MessageIndex}}{{end}}", "in put 3"),
        ("{{range .Functions}}{{.Name}};{{end}}", "one;two;"),
        ("{{range $i, $f := .Functions}}{{if $i}}, {{end}}{{$f.Name}}{{end}}", "one, two"),
        ("{{range $v := .Metadata}}{{$v}}{{end}}", "12"),
        ("{{range $k, $v := .Metadata}}{{$k}}{{$v}} {{end}}", "a1 b2 "),
        ("{{range .SystemPrompt | fromJson}}x{{else}}none{{end}}", "none"),
        ("{{range 3}}{{.}}{{end}}{{range $i := 2}}{{$i}}{{end}}", "01201"),
        ("{{range until 9}}{{if eq . 1}}{{continue}}{{end}}{{if eq . 3}}{{break}}{{end}}{{.}}{{end}}", "02"),
        ("{{range 2}}{{range 0}}{{else}}{{break}}x{{end}}a{{end}}", "aa"),
        ("{{range 2}}{{range 0}}{{else}}{{continue}}x{{end}}a{{else}}b{{end}}", ""),
        ('{{$x := "a"}}{{if true}}{{$x = "b"}}{{$x := "c"}}{{$x}}{{end}}{{$x}}', "cb"),
        ('{{$t := ""}}{{range .Functions}}{{$t = print $t .Name " "}}{{end}}{{$t}}', "one two "),
        (
            '{{define "t"}}[{{.}}{{$}}]{{end}}{{template "t" .MessageIndex}}{{template "t"}}',
            "[33][<no value><no value>]",
        ),
        ('{{block "b" .Input}}({{.}}){{end}}', "(in put)"),
        ("{{(index .Functions 0).Name | printf `%s-%d` `a`}}", "a-%!d(string=one)"),
        ("{{.Metadata.zz}} {{.Metadata.zz.yy}}", "<no value> <no value>"),
        ("{{(index .Functions 0).Parameters.none}}", "<no value>"),
        ("{{print (index .Functions 0).Parameters.none}}", "<nil>"),
        ('{{index .Metadata "zz"}}|{{index (index .Functions 0).Parameters "zz"}}', "|<no value>"),
        ("{{index .Input 0}} {{len .Input}}", "105 6"),
        ("{{index .Functions 1}}", "{two  true map[]}"),
        ("{{and .Input .MessageIndex}} {{or .Instruction .Input}} {{and 0 .Missing}}", "3 in put 0"),
        ("{{not .Input}}{{not .Instruction}}", "falsetrue"),
    ],
)
def test_a_template_is_rendered_as_go_does(template: str, text: str) -> None:
    assert rendered(template) == text


def test_a_template_may_define_one_that_is_called_as_itself_is_here() -> None:
    assert execute(parse('{{define "chat"}}x{{end}}{{template "chat"}}', "chat"), data_for("chat", {})) == "x"


def test_calls_are_structs_and_a_legacy_call_is_a_map() -> None:
    template = "{{range .FunctionCall}}{{.ID}} {{.FunctionCall.Name}} {{.Index}}{{end}}"
    assert of_message(template) == "c1 f 1"
    assert of_message("{{.FunctionCall}}") == "[{1 c1 function {f {}}}]"
    assert of_message("{{.FunctionCall.name}}", FunctionCall={"name": "g"}) == "g"
    assert of_message("{{.FunctionCall}}{{(.FunctionCall).x}}", FunctionCall=None) == "<no value><no value>"


@pytest.mark.parametrize(
    ("template", "line", "problem"),
    [
        ("{{ .Input", 1, "an action is not closed by }}"),
        ("a\n{{ nosuchthing .Input }}", 2, "the function nosuchthing is not offered"),
        ("{{html .Input}}", 1, "the function html is not offered"),
        ("\n\n{{if .Input}}x", 3, "{{if}} has no {{end}}"),
        ("{{end}}", 1, "unexpected {{end}}"),
        ("{{if true}}a{{else}}b{{else}}c{{end}}", 1, "{{if}} has a second {{else}}"),
        ("{{with .Input}}{{else if true}}{{end}}", 1, "unexpected if in else"),
        ("{{break}}", 1, "{{break}} is outside of {{range}}"),
        ("{{range .Functions}}{{define `x`}}{{end}}{{end}}", 1, "unexpected define in an action"),
        ("{{$x}}", 1, "the variable $x is not declared"),
        ("{{if $x := 1}}{{end}}{{$x}}", 1, "the variable $x is not declared"),
        ("{{$x, $y := .Functions}}", 1, "too many variables in an action"),
        ("{{(print 1}}", 1, "a parenthesis is not closed"),
        ("{{print 1)}}", 1, "a parenthesis is closed that was not opened"),
        ("{{}}", 1, "a value is missing in an action"),
        ("{{if}}{{end}}", 1, "a value is missing in if"),
        ('{{"abc}}', 1, "a quoted text has no end"),
        ("{{`abc}}", 1, "a raw text has no end"),
        ("{{'a}}", 1, "a character has no end"),
        ("{{'ab'}}", 1, "cannot read the character 'ab'"),
        ('{{"\\q"}}', 1, 'cannot read the text "\\q"'),
        ("{{99999999999999999999}}", 1, "cannot read the number 99999999999999999999"),
        ("{{1i}}", 1, "cannot read the number 1i"),
        ("{{-.Input}}", 1, "a space is missing after {{-: write {{- .Input"),
        ("{{.Input # }}", 1, "cannot read #"),
        ("{{/* x }}", 1, "a comment has no end"),
        ("{{/* x */ y}}", 1, "a comment is not followed by }}"),
        ("{{ /* x */ }}", 1, "cannot read /"),
        ("{{.Input | 3}}", 1, "3 is no function"),
        ('{{"a"."b"}}', 1, "cannot read ."),
        ('{{"a".b}}', 1, "a field .b of a plain value"),
        ('{{"a""b"}}', 1, 'unexpected "b" in an action'),
        ('{{template "x"}}', 1, 'no template "x" is defined'),
        ('{{define "x"}}a{{end}}\n{{define "x"}}b{{end}}', 2, 'template "x" is defined twice'),
        ('{{printf "%*d" 1 2}}', 1, "printf's %* is not offered"),
        ("{{" + "(" * 50 + "1" + ")" * 50 + "}}", 1, "more than 40 blocks and parentheses inside each other"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_line(template: str, line: int, problem: str) -> None:
    with pytest.raises(TemplateRefused) as refused:
        parse(template, "chat")
    assert (refused.value.template, refused.value.line, refused.value.problem) == ("chat", line, problem)
    assert str(refused.value) == f"template chat, line {line}: {problem}"


@pytest.mark.parametrize(
    ("template", "expression", "problem"),
    [
        ("{{.Missing}}", ".Missing", "there is no field Missing in templates.PromptTemplateData"),
        ("{{.Input.x}}", ".Input.x", "there is no field x in a text"),
        ("{{(index .Functions 0).Parameters.none.x}}", "(index .Functions 0).Parameters.none.x", "nil has no field x"),
        ("{{index .Functions 9}}", "index .Functions 9", "index 9 is out of range: there are 2"),
        ('{{index .Functions "a"}}', 'index .Functions "a"', "a list cannot be indexed by a text"),
        ("{{index .Metadata 0}}", "index .Metadata 0", "a map has texts as keys, not int"),
        ("{{print (len nil)}}", "len nil", "nil has no length"),
        ('{{eq 1 "a"}}', 'eq 1 "a"', "int and a text cannot be compared"),
        ("{{eq 1 1.0}}", "eq 1 1.0", "int and float64 cannot be compared"),
        ("{{lt true false}}", "lt true false", "bool has no order"),
        ("{{upper 3}}", "upper 3", "the number 3 where string is expected"),
        ("{{upper .Metadata.zz}}", "upper .Metadata.zz", "nil where string is expected"),
        ("{{until (add 1 2)}}", "until (add 1 2)", "int64 where int is expected"),
        ("{{repeat 1.5 `a`}}", "repeat 1.5 `a`", "the number 1.5 where int is expected"),
        ("{{upper}}", "upper", "upper takes 1 arguments, not 0"),
        ("{{hasKey .Metadata `a`}}", "hasKey .Metadata `a`", "a map where map is expected"),
        ("{{.Input 1}}", ".Input 1", ".Input 1 is no function, and takes no arguments"),
        ("{{1 | .Input}}", ".Input", ".Input is no function, and takes no arguments"),
        ("{{nil}}", "nil", "nil is no command"),
        ("{{range .Input}}{{end}}", "", "range cannot go through a text"),
        ("{{if true}}{{$y := 1}}{{end}}{{$y = 2}}", "", "the variable $y is not declared"),
    ],
)
def test_what_fails_with_these_values_names_the_place(template: str, expression: str, problem: str) -> None:
    with pytest.raises(TemplateFailed) as failed:
        execute(parse("\n" + template, "chat"), data_for("chat", PROMPT))
    assert failed.value.problem == problem
    assert failed.value.expression == expression
    assert failed.value.template == "chat"


def test_the_data_of_a_template_are_not_changed_by_it() -> None:
    data = data_for("chat", PROMPT)
    template = parse('{{$p := (index .Functions 0).Parameters}}{{$_ := set $p "new" 1}}{{$p.new}}')
    assert execute(template, data) == "1"
    assert "new" not in PROMPT["Functions"][0]["parameters"]  # type: ignore[index]
