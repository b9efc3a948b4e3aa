// Command module is a program for the tests of the runtime handler wasm, built for wasip1. Its first argument says what
// it does.
package main

// It does without fmt, which would make it half as large again, and it is compiled again at each start.
import (
	"os"
	"time"
)

func say(f *os.File, text string) {
	if _, err := f.WriteString(text); err != nil {
		os.Exit(2)
	}
}

func check(err error) {
	if err != nil {
		say(os.Stderr, err.Error()+"\n")
		os.Exit(1)
	}
}

func main() {
	if len(os.Args) < 2 {
		say(os.Stderr, "nothing to do\n")
		os.Exit(2)
	}
	args := os.Args[2:]
	switch os.Args[1] {
	case "env":
		say(os.Stdout, os.Getenv(args[0])+"\n")
	case "copy":
		b, err := os.ReadFile(args[0])
		check(err)
		check(os.WriteFile(args[1], b, 0o644))
	case "exit":
		say(os.Stderr, "exits with 5\n")
		os.Exit(5)
	case "grow":
		var all [][]byte
		for {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			all = append(all, b)
			if len(all)%64 == 0 {
				say(os.Stdout, "more\n")
			}
		}
	case "sleep":
		say(os.Stdout, os.Getenv("FROM_IMAGE")+os.Getenv("FROM_POD")+"\n")
		time.Sleep(time.Hour)
	}
}
