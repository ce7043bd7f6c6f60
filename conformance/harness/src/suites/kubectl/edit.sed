s/colour: blue/colour: green/
s/provisioner: kubectl.example.com/provisioner: other.example.com/
