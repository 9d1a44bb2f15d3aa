package mysqlwire

import (
	"fmt"
	"strings"
)

// Supported reports that a server has SKIP LOCKED and common table expressions. A text that is no version passes: a proxy or a
// fork may answer as it likes.
func Supported(version string) bool {
	text := strings.TrimPrefix(version, "5.5.5-") // what MariaDB says to old replicas
	var major, minor, patch int
	if _, err := fmt.Sscanf(text, "%d.%d.%d", &major, &minor, &patch); err != nil {
		return true
	}
	got, need := [3]int{major, minor, patch}, [3]int{8, 0, 19}
	if strings.Contains(strings.ToLower(version), "mariadb") {
		need = [3]int{10, 6, 0}
	}
	for i := range got {
		if got[i] != need[i] {
			return got[i] > need[i]
		}
	}
	return true
}
