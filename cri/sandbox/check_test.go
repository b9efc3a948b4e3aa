package sandbox

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestSysctls(t *testing.T) {
	for key, ok := range map[string]bool{
		"net.core.somaxconn": true, "net/ipv4/conf/eth0.1/forwarding": true, "kernel.shmmax": true, "fs.mqueue.msg_max": true, "vm.swappiness": false, "kernel.hostname": false,
	} {
		cfg := &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "a", Namespace: "default", Uid: "uid-a"},
			Linux:    &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/pods/a", Sysctls: map[string]string{key: "1"}},
		}
		if err := checkSandbox(cfg); (err == nil) != ok {
			t.Errorf("%s: got %v", key, err)
		}
		cfg.Linux.SecurityContext = &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{
			Network: runtimeapi.NamespaceMode_NODE, Ipc: runtimeapi.NamespaceMode_NODE,
		}}
		if err := checkSandbox(cfg); err == nil {
			t.Errorf("%s was taken for the host's namespace", key)
		}
	}
	if got := sysctlName("net/ipv4/conf/eth0.1/forwarding"); got != "net.ipv4.conf.eth0/1.forwarding" {
		t.Errorf("got %s", got)
	}
}

func TestResolvConf(t *testing.T) {
	got := resolvConf(&runtimeapi.DNSConfig{Servers: []string{"1.1.1.1", "::1"}, Searches: []string{"a", "b"}, Options: []string{"ndots:5"}})
	if want := "search a b\nnameserver 1.1.1.1\nnameserver ::1\noptions ndots:5\n"; got != want {
		t.Errorf("got %q", got)
	}
	if resolvConf(nil) != "" {
		t.Error("nothing became something")
	}
}
