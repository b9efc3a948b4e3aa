package stdio

import "strings"

// Unexecuted is how a command ends that could not be begun.
type Unexecuted struct {
	Code    int32
	Message string
}

// The exit codes of shells, and of docker and podman, for a command that is not there and one that is but cannot run.
const (
	codeNoExecutable  = 127
	codeNotExecutable = 126
)

// NotExecuted says whether err is that the command's program could not be executed. That is the end of the command, and
// not a failure of the runtime: who has asked for it is told by an exit code, as by every shell. Keepers outlive the
// runtime that made them, and other runtimes write to a file what went wrong: both say it in words only, and all in
// runc's.
func NotExecuted(err error, cmd []string) (Unexecuted, bool) {
	if err == nil || len(cmd) == 0 {
		return Unexecuted{}, false
	}
	text := err.Error()
	// The words end what is said, behind the names of who says so. A program's name may hold anything, theirs do not.
	for _, begin := range []string{`exec: "` + cmd[0] + `": `, "exec " + cmd[0] + ": "} {
		i := strings.Index(text, begin)
		if i < 0 {
			continue
		}
		return Unexecuted{codeOf(text[i+len(begin):]), text[i:]}, true
	}
	// What execve(2) itself says has the path where the program was found, and crun has its own words.
	for _, end := range []string{"exec format error", "permission denied", "no such file or directory"} {
		i := strings.LastIndex(text, "exec /")
		if i >= 0 && strings.HasSuffix(text, ": "+end) {
			return Unexecuted{codeOf(end), text[i:]}, true
		}
	}
	for begin, code := range map[string]int32{
		"executable file `" + cmd[0] + "` not found in $PATH": codeNoExecutable,
		"executable file `" + cmd[0] + "` not found:":         codeNoExecutable,
		"open executable: No such file or directory":          codeNoExecutable,
		"open executable: Permission denied":                  codeNotExecutable,
	} {
		if i := strings.Index(text, begin); i >= 0 {
			return Unexecuted{code, text[i:]}, true
		}
	}
	return Unexecuted{}, false
}

func codeOf(why string) int32 {
	if strings.HasSuffix(why, "no such file or directory") || strings.HasSuffix(why, "executable file not found in $PATH") {
		return codeNoExecutable
	}
	return codeNotExecutable
}
