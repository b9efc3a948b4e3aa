package kube

import "strings"

// ContainerGroup finds the group of a container among the names of the groups in its pod's, by its ID: what else is in
// the name is the runtime's choice. CRI-O's monitor of the container (conmon) has a group of its own beside it that is
// named after it, too.
func ContainerGroup(names []string, id string) (string, bool) {
	for _, name := range names {
		if strings.Contains(name, id) && !IsMonitor(name) {
			return name, true
		}
	}
	return "", false
}

// IsMonitor says whether a group in a pod's is that of a process which watches a container, and no container's.
func IsMonitor(name string) bool { return strings.HasPrefix(name, "crio-conmon-") }
