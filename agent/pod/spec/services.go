package spec

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The Service of the API server itself, which containers of every namespace are told of.
const (
	masterNamespace = "default"
	masterService   = "kubernetes"
)

// errServicesUnknown is kubelet's, which people look for.
var errServicesUnknown = errors.New("services have not yet been read at least once, cannot construct envvars")

// serviceVars are the variables by which the containers of a pod find Services: those of its namespace, unless it does
// not want them, and that of the API server. Who calls it has made sure that all Services are known.
func serviceVars(pod *corev1.Pod, objects Objects) map[string]string {
	found := map[string]*corev1.Service{}
	for _, s := range objects.Services(masterNamespace) {
		if s.Name == masterService && linked(s) {
			found[s.Name] = s
		}
	}
	if links := pod.Spec.EnableServiceLinks; links == nil || *links {
		for _, s := range objects.Services(pod.Namespace) {
			if linked(s) { // one of the name of the API server's, too
				found[s.Name] = s
			}
		}
	}
	out := map[string]string{}
	for _, s := range found {
		link(s, out)
	}
	return out
}

// linked says whether there are variables of a Service: those without an address of their own have none. A name that an
// API server would not take is none that a variable could be called by.
func linked(s *corev1.Service) bool {
	return s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone && len(s.Spec.Ports) > 0 &&
		len(validation.IsDNS1123Label(s.Name)) == 0
}

func variable(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

// link adds the variables of one Service, as kubelet makes them, those of the links of Docker among them.
func link(s *corev1.Service, to map[string]string) {
	name, ip := variable(s.Name), s.Spec.ClusterIP
	to[name+"_SERVICE_HOST"] = ip
	to[name+"_SERVICE_PORT"] = port(&s.Spec.Ports[0])
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.Name != "" && len(validation.IsDNS1123Label(p.Name)) == 0 {
			to[name+"_SERVICE_PORT_"+variable(p.Name)] = port(p)
		}
		protocol := string(p.Protocol)
		if protocol == "" {
			protocol = string(corev1.ProtocolTCP)
		}
		url := strings.ToLower(protocol) + "://" + net.JoinHostPort(ip, port(p))
		if i == 0 {
			to[name+"_PORT"] = url
		}
		prefix := fmt.Sprintf("%s_PORT_%s_%s", name, port(p), strings.ToUpper(protocol))
		to[prefix] = url
		to[prefix+"_PROTO"] = strings.ToLower(protocol)
		to[prefix+"_PORT"] = port(p)
		to[prefix+"_ADDR"] = ip
	}
}

func port(p *corev1.ServicePort) string { return strconv.Itoa(int(p.Port)) }
