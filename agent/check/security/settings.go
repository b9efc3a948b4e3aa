package security

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A rule is what a setting should be.
type rule struct {
	name  string
	check func(s settings) (Status, string)
	do    string
}

func decide(ok bool, found string) (Status, string) {
	if ok {
		return OK, found
	}
	return Deviation, found
}

func advise(ok bool, found string) (Status, string) {
	if ok {
		return OK, found
	}
	return Advice, found
}

// served says that the API is served beyond the socket.
func (s settings) served() bool { return s.yes("enableServer") && s.number("port") != 0 }

// rules are the items of the benchmark that are settings here, by kubelet's names.
var rules = []rule{
	{"anonymous-auth", func(s settings) (Status, string) {
		return decide(!s.yes("authentication.anonymous.enabled"), fmt.Sprint(s.yes("authentication.anonymous.enabled")))
	}, "set authentication.anonymous.enabled to false (--anonymous-auth=false)"},
	{"authorization-mode", func(s settings) (Status, string) {
		mode := s.text("authorization.mode")
		return decide(mode != "AlwaysAllow", mode)
	}, "set authorization.mode to Webhook: who is known may otherwise do everything"},
	{"api-allow", func(s settings) (Status, string) {
		var open []string
		for _, r := range s.list("berth.apiAllow") {
			who, what, _ := strings.Cut(r, "=")
			if (who == "group:system:unauthenticated" || who == "group:system:authenticated" || who == "user:system:anonymous") && what != "get:healthz" {
				open = append(open, r)
			}
		}
		return decide(len(open) == 0, cmp.Or(strings.Join(open, " "), "only who is named"))
	}, "take the rules for everybody out of apiAllow"},
	{"client-ca-file", func(s settings) (Status, string) {
		ca := s.text("authentication.x509.clientCAFile")
		return decide(!s.served() || ca != "" || s.text("berth.kubeconfig") == "", cmp.Or(ca, "the node's own authority"))
	}, "set authentication.x509.clientCAFile: an API server that asks this node has a certificate"},
	{"read-only-port", func(s settings) (Status, string) {
		return decide(s.number("readOnlyPort") == 0, strconv.Itoa(s.number("readOnlyPort")))
	}, "set readOnlyPort to 0: it shows pods to everybody who reaches it"},
	{"healthz-bind-address", func(s settings) (Status, string) {
		ip := net.ParseIP(s.text("healthzBindAddress"))
		return decide(s.number("healthzPort") == 0 || ip.IsLoopback(), fmt.Sprintf("%s, port %d", ip, s.number("healthzPort")))
	}, "bind /healthz to the loopback address (healthzBindAddress: 127.0.0.1)"},
	{"streaming-connection-idle-timeout", func(settings) (Status, string) { return OK, "4h, always" }, ""},
	{"event-qps", func(settings) (Status, string) { return OK, "no event is left out: they are in memory" }, ""},
	{"rotate-certificates", func(s settings) (Status, string) {
		if file := s.text("tlsCertFile"); file != "" {
			return OK, file + " is read again when it is replaced"
		}
		return OK, "the node makes its own anew before it ends"
	}, ""},
	{"tls-min-version", func(s settings) (Status, string) {
		v := cmp.Or(s.text("tlsMinVersion"), "VersionTLS12")
		return decide(v == "VersionTLS12" || v == "VersionTLS13", v)
	}, "set tlsMinVersion to VersionTLS12 or VersionTLS13"},
	{"tls-cipher-suites", func(s settings) (Status, string) {
		var weak []string
		for _, name := range s.list("tlsCipherSuites") {
			if !strong(name) {
				weak = append(weak, name)
			}
		}
		found := "Go's"
		if all := s.list("tlsCipherSuites"); len(all) > 0 {
			found = strings.Join(all, " ")
		}
		return decide(len(weak) == 0, cmp.Or(strings.Join(weak, " "), found))
	}, "have tlsCipherSuites name suites with forward secrecy and authenticated encryption alone (ECDHE with GCM or CHACHA20)"},
	{"profiling", func(s settings) (Status, string) {
		return decide(!s.yes("enableProfilingHandler"), fmt.Sprint(s.yes("enableProfilingHandler")))
	}, "set enableProfilingHandler to false when you have the profile"},
	{"debugging-handlers", func(s settings) (Status, string) {
		open := s.served() && s.yes("enableDebuggingHandlers") && s.yes("enableSystemLogHandler")
		return advise(!open, fmt.Sprintf("logs of the machine over the network: %t", open))
	}, "set enableSystemLogHandler to false, unless who may read logs (apiAllow: log) is to read /var/log"},
	{"seccomp-default", func(s settings) (Status, string) {
		return advise(s.yes("seccompDefault"), fmt.Sprint(s.yes("seccompDefault")))
	}, "set seccompDefault to true: containers that name no profile have all system calls otherwise"},
	{"pod-max-pids", func(s settings) (Status, string) {
		n := max(s.number("podPidsLimit"), s.number("berth.podMaxPids"))
		return advise(n > 0, strconv.Itoa(n))
	}, "set podPidsLimit: one pod can otherwise have all processes of the machine"},
	{"image-pull-credentials", func(s settings) (Status, string) {
		policy := s.text("imagePullCredentialsVerificationPolicy")
		return decide(policy != "NeverVerify", policy)
	}, "set imagePullCredentialsVerificationPolicy: pods can use others' private images otherwise"},
}

// strong says that a suite of TLS 1.2, by its IANA name, is not known to be weak.
func strong(name string) bool {
	return strings.HasPrefix(name, "TLS_ECDHE_") && (strings.Contains(name, "_GCM_") || strings.Contains(name, "_CHACHA20_")) ||
		slices.Contains([]string{"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}, name)
}

func settingItems(s settings) []Item {
	out := make([]Item, 0, len(rules))
	for _, r := range rules {
		status, found := r.check(s)
		out = append(out, Item{r.name, status, found, r.do})
	}
	return out
}

// portItems asks the ports of the node what they tell to a stranger: a setting may say one thing and a proxy do
// another.
func (c Config) portItems(ctx context.Context, s settings) []Item {
	if !s.served() {
		return []Item{{Name: "https-port", Status: OK, Found: "off: the API is on the socket alone"}}
	}
	ip := s.text("address")
	if parsed := net.ParseIP(ip); parsed != nil && parsed.IsUnspecified() {
		ip = "127.0.0.1"
	}
	addr := net.JoinHostPort(ip, strconv.Itoa(s.number("port")))
	return []Item{stranger(ctx, addr), oldTLS(ctx, addr)}
}

func stranger(ctx context.Context, addr string) Item {
	item := Item{Name: "https-port", Do: "find out who answers on " + addr + ": a stranger must be refused (401)"}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// Who the node is does not matter here: nothing is told to it.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr+"/pods", nil)
	var resp *http.Response
	if err == nil {
		resp, err = (&http.Client{Transport: transport}).Do(req)
	}
	if err != nil {
		item.Status, item.Found = Unknown, err.Error()
		return item
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 1<<10)
	refused := resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden
	item.Status, item.Found = decide(refused, fmt.Sprintf("a stranger who asks %s for pods gets %s", addr, resp.Status))
	return item
}

func oldTLS(ctx context.Context, addr string) Item {
	item := Item{Name: "https-port-tls", Do: "set tlsMinVersion to VersionTLS12 or VersionTLS13"}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	old := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	conn, err := (&tls.Dialer{Config: old}).DialContext(ctx, "tcp", addr)
	var refused net.Error
	switch {
	case err == nil:
		conn.Close()
		item.Status, item.Found = Deviation, "TLS 1.1 is spoken"
	case errors.As(err, &refused) && refused.Timeout():
		item.Status, item.Found = Unknown, err.Error()
	default:
		item.Status, item.Found = OK, "TLS 1.1 is refused"
	}
	return item
}

// kernelItems are what kubelet's protectKernelDefaults wants of the kernel.
func (c Config) kernelItems() []Item {
	item := Item{Name: "protect-kernel-defaults", Status: OK, Found: "as kubelet wants them"}
	var amiss []string
	for _, want := range []struct {
		name  string
		value int
		least bool
	}{
		{"vm.overcommit_memory", 1, false},
		{"vm.panic_on_oom", 0, false},
		{"kernel.panic", 10, false},
		{"kernel.panic_on_oops", 1, false},
		{"kernel.keys.root_maxkeys", 1000000, true},
		{"kernel.keys.root_maxbytes", 25000000, true},
	} {
		text, err := os.ReadFile(filepath.Join(c.Proc, strings.ReplaceAll(want.name, ".", "/")))
		has, perr := strconv.Atoi(strings.TrimSpace(string(text)))
		switch {
		case err != nil || perr != nil:
			amiss = append(amiss, want.name+" cannot be read")
		case has != want.value && (!want.least || has < want.value):
			amiss = append(amiss, fmt.Sprintf("%s=%d (%d)", want.name, want.value, has))
		}
	}
	if len(amiss) > 0 {
		item.Status, item.Found = Advice, "should be "+strings.Join(amiss, ", ")
		item.Do = "set them in /etc/sysctl.d, if the whole machine is the node's: 90-berth.conf has them, commented out"
	}
	return []Item{item}
}
