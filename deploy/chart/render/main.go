// Renders the chart with Go's own templates, the engine of Helm, and the functions of Helm that the chart uses.
// Tests run it where Helm is missing. Input on stdin: JSON with the release, the chart and the values.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
)

type files string

func (folder files) Get(name string) string {
	text, err := os.ReadFile(filepath.Join(string(folder), name))
	check(err)
	return string(text)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	folder := os.Args[1]
	var world map[string]any
	// Numbers become float64, as in Helm.
	check(json.NewDecoder(os.Stdin).Decode(&world))
	world["Files"] = files(folder)

	all := template.New("chart").Option("missingkey=error")
	all.Funcs(template.FuncMap{
		"quote": func(value any) string { return strconv.Quote(fmt.Sprint(value)) },
		"toJson": func(value any) (string, error) {
			text, err := json.Marshal(value)
			return string(text), err
		},
		"int64":   func(value float64) int64 { return int64(value) },
		"replace": func(old, new, text string) string { return strings.ReplaceAll(text, old, new) },
		"nindent": func(columns int, text string) string {
			indent := "\n" + strings.Repeat(" ", columns)
			return indent + strings.ReplaceAll(text, "\n", indent)
		},
		"include": func(name string, data any) (string, error) {
			var text strings.Builder
			err := all.ExecuteTemplate(&text, name, data)
			return text.String(), err
		},
	})
	names, err := filepath.Glob(filepath.Join(folder, "templates", "*"))
	check(err)
	_, err = all.ParseFiles(names...)
	check(err)
	for _, name := range names {
		base := filepath.Base(name)
		if strings.HasPrefix(base, "_") {
			continue
		}
		if strings.HasSuffix(base, ".txt") {
			check(all.ExecuteTemplate(os.Stderr, base, world))
			continue
		}
		fmt.Println("---")
		check(all.ExecuteTemplate(os.Stdout, base, world))
		fmt.Println()
	}
}
